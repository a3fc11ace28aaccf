"""A simulated world: the real planner and the real participant core over a simulated API and store.

Virtual time, one seed per history. ``kernel`` runs it, ``api`` is the API server with its watches,
``operator`` and ``agent`` are thin doubles of the two shells around the real cores, ``ground`` is what agents
stand on, ``cluster`` plays scheduler, kubelets and network. ``faults`` breaks things, ``traits`` and
``strains`` do what goes on for long; ``truth`` remembers what has really happened and who may be charged for
it, ``oracle`` and ``pace`` judge every step, ``rest`` the end, and ``history`` makes a whole seeded run of
it. ``life`` is a script instead: one job with a failure of each kind.
"""
