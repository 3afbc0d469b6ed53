"""Records the classes of vLLM that the connector extends, for the stand-in of the default suite.

Runs in vLLM's environment. Writes the fixture, or with --check prints each difference from it and
exits 1 if there are any.
"""

import argparse
import inspect
import json
import pathlib
import sys

FIXTURE = (
    pathlib.Path(__file__).parents[2] / "python/tests/fixtures/vllm-0.32-interface.json"
)
BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
METRICS = "vllm.distributed.kv_transfer.kv_connector.v1.metrics"
CLASSES = {
    "KVConnectorBase_V1": BASE,
    "KVConnectorHandshakeMetadata": BASE,
    "KVConnectorMetadata": BASE,
    "KVConnectorWorkerMetadata": BASE,
    "SupportsHMA": BASE,
    "KVConnectorStats": METRICS,
    "KVConnectorPromMetrics": METRICS,
}


def parameters_of(function):
    return [
        [one.name, one.kind.name, one.default is not one.empty]
        for one in inspect.signature(function).parameters.values()
    ]


def member_of(value):
    """Kind and parameters of a method; None for other members."""
    if isinstance(value, property):
        return {"kind": "property", "parameters": parameters_of(value.fget)}
    for kind in (classmethod, staticmethod):
        if isinstance(value, kind):
            found = parameters_of(value.__func__)
            return {"kind": kind.__name__, "parameters": found}
    if inspect.isfunction(value):
        return {"kind": "method", "parameters": parameters_of(value)}
    return None


def class_of(name, module):
    found = getattr(__import__(module, fromlist=[name]), name)
    members = {key: member_of(value) for key, value in vars(found).items()}
    return {
        "module": module,
        "abstract": sorted(getattr(found, "__abstractmethods__", ())),
        "members": {key: value for key, value in sorted(members.items()) if value is not None},
    }


def recorded():
    import vllm

    roles = __import__(BASE, fromlist=["KVConnectorRole"]).KVConnectorRole
    return {
        "version": vllm.__version__.split("+")[0],
        "roles": {one.name: one.value for one in roles},
        "classes": {name: class_of(name, module) for name, module in CLASSES.items()},
    }


def differences(wanted, found, path=""):
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in sorted({*wanted, *found}):
            yield from differences(wanted.get(key), found.get(key), f"{path}/{key}")
    elif wanted != found:
        yield f"{path}: recorded {json.dumps(wanted)}, found {json.dumps(found)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    found = recorded()
    if not parser.parse_args().check:
        FIXTURE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    problems = list(differences(json.loads(FIXTURE.read_text("utf-8")), found))
    for problem in problems:
        print(f"vLLM's interface: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
