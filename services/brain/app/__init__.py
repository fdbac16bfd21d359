"""Use cases of brain.

    jobs        first plans, profiles, histories, explanations
    deciding    better plans of jobs that train, chosen among all of them; what came of changes
    placing     nodes for pods, as a scheduler asks
"""
