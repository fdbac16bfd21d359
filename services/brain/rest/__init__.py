"""HTTP for schedulers.

extender.py   the extender API of kube-scheduler, v1
"""
