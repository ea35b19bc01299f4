"""The rollout service: jobs in, trajectories out, over one engine."""
