"""A verifier: reads a completion a line, answers with its reward. `docs/tasks.md` tells the rest."""

import json
import sys


def rewards(prompt, completion, fields):
    right = completion.strip() == str(fields["solution"])
    return {"exact": float(right), "brief": float(len(completion) <= 20)}


for line in sys.stdin:
    asked = json.loads(line)
    answer = rewards(asked["prompt"], asked["completion"], asked["fields"])
    print(json.dumps({"id": asked["id"], "rewards": answer}), flush=True)
