import { expect, test } from "bun:test";
import { eventEndpoints } from "../../src/proxy/health/index.ts";

const URL_OF = "http://10.0.0.1:8000/v1";

function source(endpoint: unknown, publisher = "zmq") {
  return { publisher, endpoint, topic: "" };
}

test("an engine's publishers are reached at the host of its URL, rank by rank", () => {
  const answer = { "0": source("tcp://*:5557"), "1": source("tcp://[::]:5558") };
  expect(eventEndpoints(JSON.stringify(answer), URL_OF)).toEqual([
    "tcp://10.0.0.1:5557",
    "tcp://10.0.0.1:5558",
  ]);
  const [v6] = eventEndpoints(JSON.stringify({ "0": source("tcp://*:5557") }), "http://[::1]:80");
  expect(v6).toBe("tcp://[::1]:5557");
});

test("what is no publisher that can be reached is left out, whatever the answer holds", () => {
  for (const odd of [
    source("tcp://10.9.9.9:5557"),
    source("ipc:///tmp/x"),
    source("tcp://*:99999"),
    source("tcp://*:0"),
    source("tcp://*:5557", "null"),
    source(5),
    null,
    7,
    "x",
    [],
  ]) {
    expect(eventEndpoints(JSON.stringify({ "0": odd }), URL_OF)).toEqual([]);
  }
  for (const text of ["", "[]", "null", "{", "5"]) expect(eventEndpoints(text, URL_OF)).toEqual([]);
  expect(eventEndpoints("{}", "no url")).toEqual([]);
});
