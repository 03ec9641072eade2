"""A verifier: reads one completion per line and answers with its rewards. See docs/verifiers.md."""

import json
import sys


def rewards(prompt, completion, fields):
    right = completion.strip() == str(fields["solution"])
    return {"exact": float(right), "brief": float(len(completion) <= 20)}


for line in sys.stdin:
    request = json.loads(line)
    answer = rewards(request["prompt"], request["completion"], request["fields"])
    print(json.dumps({"id": request["id"], "rewards": answer}), flush=True)
