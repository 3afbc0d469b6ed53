import { type BadFile, engine, KV } from "./bad-file.ts";

function events(...lines: string[]): string {
  return `${KV}[events]\n${lines.join("\n")}\n`;
}

const ENGINE = '[engine]\nkv_events = "tcp://127.0.0.1:5557"\nkv_events_model = "m"\n';
const MODEL = 'kv_events_model = "m"';

/** [events] and the engine's own: each key alone, and those that depend on another. */
export const EVENTS: readonly BadFile[] = [
  ["no such mode", events('mode = "on"'), ["4:8 events.mode", '"ring"']],
  ["a stream on no server", events('mode = "stream"'), ["4:8 events.mode", "nats.url is not set"]],
  ["ZMQ without a port", events('zmq = "tcp://*"'), ["4:7 events.zmq", "not a ZMQ endpoint"]],
  ["ZMQ on port 0", events('zmq = "tcp://*:0"'), ["4:7 events.zmq", "1 to 65535"]],
  ["ZMQ of another sort", events('zmq = "udp://a:1"'), ["4:7 events.zmq", "tcp://*:5567"]],
  [
    "ZMQ at half an address",
    events('zmq = "tcp://10.0.0:1"'),
    ["4:7 events.zmq", "invalid address"],
  ],
  ["ZMQ on a nameless socket", events('zmq = "ipc://x"'), ["4:7 events.zmq", "not name a socket"]],
  [
    "ZMQ of one that says nothing",
    `${events('mode = "off"', 'zmq = "tcp://*:5567"')}${ENGINE}`,
    ["5:7 events.zmq", 'with mode = "off"'],
  ],
  [
    "ZMQ without KV events",
    events('zmq = "tcp://*:5567"'),
    ["4:7 events.zmq", "kv_events below [engine]"],
  ],
  [
    "replay without ZMQ",
    events('zmq_replay = "tcp://*:5667"'),
    ["4:14 events.zmq_replay", "without zmq"],
  ],
  [
    "an engine everywhere",
    engine('kv_events = "tcp://*:5557"', MODEL),
    ["4:13 engine.kv_events", "has one address"],
  ],
  [
    "an engine's events without its model",
    engine('kv_events = "tcp://127.0.0.1:5557"'),
    ["4:13 engine.kv_events", "kv_events_model is not set"],
  ],
  ["a model of no events", engine(MODEL), ["4:19 engine.kv_events_model", "without kv_events"]],
  [
    "replay of no events",
    engine('kv_events_replay = "tcp://127.0.0.1:5558"'),
    ["4:20 engine.kv_events_replay", "without kv_events"],
  ],
  [
    "ranks of a socket",
    engine('kv_events = "ipc:///run/kv"', MODEL, "kv_events_ranks = 2"),
    ["4:13 engine.kv_events", "not enough ports for 2 ranks"],
  ],
  [
    "ranks beyond the last port",
    engine('kv_events = "tcp://127.0.0.1:65530"', MODEL, "kv_events_ranks = 8"),
    ["4:13 engine.kv_events", "not enough ports for 8 ranks"],
  ],
];
