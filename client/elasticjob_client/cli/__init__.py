"""The command line: ``elasticjob``, and as a plugin ``kubectl ej``."""
