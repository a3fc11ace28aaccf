"""A simulated world: the real planner and the real participant core over a simulated API and store.

Virtual time, one seed per history. ``kernel`` runs it, ``api`` is the API server with its watches,
``operator`` and ``agent`` are thin doubles of the two shells around the real cores, ``cluster`` plays
scheduler, kubelets and network, ``oracle`` judges every step, ``faults`` breaks things, and ``history`` makes
a whole seeded run of it.
"""
