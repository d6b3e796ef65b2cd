# ---
# A notebook in the percent format: VS Code, PyCharm and Jupyter (with jupytext) open it as cells.
# ---

# %% [markdown]
# # From a workload to deployment files
# The functions of `pdplan` are the commands of the terminal, and their keywords are its options.

# %%
from pathlib import Path

import pdplan

EXAMPLES = Path(__file__).resolve().parent if "__file__" in globals() else Path("examples")

# %% [markdown]
# ## The cheapest fleet
# `effort="quick"` searches by formula; the default also proves the fleet by simulation.

# %%
plan = pdplan.optimize(
    EXAMPLES / "chat.yaml",
    effort="quick",
    settings={"workload.request_rate": "5/s", "accelerators": ["H100"]},
)
plan  # noqa: B018 - a notebook shows the verdict and the fleet

# %% [markdown]
# Every pool is a row, with all of its settings.

# %%
print(plan.to_frame().T)

# %% [markdown]
# ## Another request rate
# `judgement` says of each class whether it meets its SLO.

# %%
simulated = pdplan.simulate(plan, rate="4/s", requests=2_000)
print({item.name: f"{item.attainment.share:.1%} {item.outcome}" for item in simulated.judgement.classes})

# %% [markdown]
# ## What if a GPU cost more?

# %%
for row in pdplan.whatif(
    EXAMPLES / "chat.yaml", {"price.H100": [2.5, 4.0]}, verify=0, settings={"accelerators": ["H100"]}
):
    print(row["price.H100"], row["cost_usd_per_hour"])

# %% [markdown]
# ## The files that run it

# %%
print(len(pdplan.deploy(plan, "deploy", target="vllm", force=True)), "files in deploy/")
