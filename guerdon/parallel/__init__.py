"""The loop of `guerdon.training` on Ray, in many processes; and serving of rewards over HTTP.

`runtime` imports Ray, and is imported by a run with ``runtime=ray`` alone.
"""
