"""Callbacks for the training loops of libraries: progress, and planned changes that lose no step.

``huggingface`` is for the Trainer of ``transformers``, ``lightning`` for that of ``lightning``. Each imports
its library, and this package imports neither.
"""
