"""The steps of a round, which every executor runs, and the plan, work and timing of rounds."""
