"""Faults for a reader who knows nothing of them: can what Kubernetes shows be understood at night?"""
