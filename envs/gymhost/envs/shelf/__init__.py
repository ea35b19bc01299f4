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
    replayable=True,
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
    replayable=True,
    description="Find a hidden number with a tool that says whether a guess is too low or too high.",
)
register(
    id="gymhost/Wordle-v0",
    entry_point="gymhost.envs.shelf.wordle:Wordle",
    mode="inline",
    order_enforce=False,
    disable_env_checker=True,
    step_timeout=10.0,
    reset_timeout=10.0,
    replayable=True,
    description="Find a hidden word of five letters; each guess is answered letter by letter.",
)
register(
    id="gymhost/ConnectFour-v0",
    entry_point="gymhost.envs.shelf.connect_four:ConnectFour",
    mode="inline",
    order_enforce=False,
    disable_env_checker=True,
    step_timeout=10.0,
    reset_timeout=10.0,
    replayable=True,
    description="Connect Four against an opponent that looks a move ahead.",
)
register(
    id="gymhost/Search-v0",
    entry_point="gymhost.envs.shelf.search:Search",
    mode="inline",
    order_enforce=False,
    disable_env_checker=True,
    step_timeout=30.0,
    reset_timeout=30.0,
    replayable=True,
    description="Answer questions over several articles with a search engine over a world that is made up.",
)
# What these import, and how long it may take to make or to compare, is not theirs to say: each session has a thread.
register(
    id="gymhost/Math-v0",
    entry_point="gymhost.envs.shelf.mathematics:Math",
    order_enforce=False,
    disable_env_checker=True,
    step_timeout=60.0,
    reset_timeout=60.0,
    replayable=True,
    description="Solve mathematical problems with exact answers, with a calculator. Needs the extra shelf.",
)
register(
    id="gymhost/ReasoningGym-v0",
    entry_point="gymhost.envs.shelf.reasoning_gym:ReasoningGym",
    order_enforce=False,
    disable_env_checker=True,
    step_timeout=60.0,
    reset_timeout=60.0,
    replayable=True,
    description="The tasks of reasoning-gym: datasets=... names them. Needs the extra shelf.",
)
register(
    id="gymhost/TextArena-v0",
    entry_point="gymhost.envs.shelf.textarena:TextArena",
    order_enforce=False,
    disable_env_checker=True,
    step_timeout=60.0,
    reset_timeout=60.0,
    replayable=True,
    description="Games of TextArena for one player: game=... names it. Needs the extra shelf.",
)
# Each of these works in sandboxes; a worker may have many such sessions, which wait most of the time. What runs there
# may tell the time, so they are not replayable.
register(
    id="gymhost/Terminal-v0",
    entry_point="gymhost.envs.shelf.terminal:Terminal",
    mode="async",
    order_enforce=False,
    disable_env_checker=True,
    step_timeout=4000.0,
    reset_timeout=4000.0,
    description="Chores with a shell in a sandbox: tasks=... loads task folders in Harbor's layout instead.",
)
register(
    id="gymhost/PythonCode-v0",
    entry_point="gymhost.envs.shelf.python_code:PythonCode",
    mode="async",
    order_enforce=False,
    disable_env_checker=True,
    description="Write a function or a program in Python that passes hidden tests.",
)
register(
    id="gymhost/Sql-v0",
    entry_point="gymhost.envs.shelf.sql:Sql",
    mode="async",
    order_enforce=False,
    disable_env_checker=True,
    description="Answer a question about a SQLite database by a query.",
)
register(
    id="gymhost/RepoRepair-v0",
    entry_point="gymhost.envs.shelf.repo_repair:RepoRepair",
    mode="async",
    order_enforce=False,
    disable_env_checker=True,
    description="Repair a behaviour of a small Python package that an issue tells of.",
)
register(
    id="gymhost/MiniSweAgentRepoRepair-v0",
    entry_point="gymhost.envs.shelf.mini_swe_agent:MiniSweAgentRepoRepair",
    mode="async",
    order_enforce=False,
    disable_env_checker=True,
    # Its own limit of a turn comes first.
    step_timeout=1200.0,
    description="RepoRepair, played by an unmodified mini-swe-agent in its sandbox. Needs the extra mini-swe-agent.",
)
