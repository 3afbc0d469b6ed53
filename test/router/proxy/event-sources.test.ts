import { expect, test } from "bun:test";
import { eventSources } from "../../../src/router/proxy/index.ts";

const URL_OF = "http://10.0.0.1:8000/v1";

function source(endpoint: unknown, more: object = {}) {
  return { publisher: "zmq", endpoint, topic: "", ...more };
}

const of = (answer: unknown, url = URL_OF) => eventSources(JSON.stringify(answer), url);

test("publishers of an engine have the host of its URL and are listed by rank", () => {
  const replay = { replay_endpoint: "tcp://0.0.0.0:5601" };
  const answer = { "1": source("tcp://[::]:5558"), "0": source("tcp://*:5557", replay) };
  expect(of(answer)).toEqual([
    { rank: 0, events: "tcp://10.0.0.1:5557", replay: "tcp://10.0.0.1:5601" },
    { rank: 1, events: "tcp://10.0.0.1:5558", replay: null },
  ]);
  const [v6] = of({ "0": source("tcp://*:5557") }, "http://[::1]:80");
  expect(v6!.events).toBe("tcp://[::1]:5557");
});

test("unreachable and invalid publishers are left out", () => {
  for (const odd of [
    source("tcp://10.9.9.9:5557"),
    source("tcp://0.0.0.0:5557"),
    source("ipc:///tmp/x"),
    source("tcp://*:99999"),
    source("tcp://*:0"),
    source("tcp://*:5557", { publisher: "null" }),
    source("tcp://*:5557", { enable_kv_cache_events: false }),
    source(5),
    null,
    7,
    "x",
    [],
  ]) {
    expect(of({ "0": odd })).toEqual([]);
  }
  for (const text of ["", "[]", "null", "{", "5"]) expect(eventSources(text, URL_OF)).toEqual([]);
  expect(eventSources("{}", "no url")).toEqual([]);
});
