"""The shelf: environments that come with gymhost."""

from gymhost.envs.registration import register

register(
    id="gymhost/Echo-v0",
    entry_point="gymhost.envs.shelf.echo:Echo",
    mode="inline",
    order_enforce=False,
    disable_env_checker=True,
    step_timeout=10.0,
    reset_timeout=10.0,
    description="Answers every text with the same text: for trying out a server.",
)
register(
    id="gymhost/GuessNumber-v0",
    entry_point="gymhost.envs.shelf.guess_number:GuessNumber",
    mode="inline",
    order_enforce=False,
    disable_env_checker=True,
    step_timeout=10.0,
    reset_timeout=10.0,
    description="Find a hidden number with a tool that says whether a guess is too low or too high.",
)
