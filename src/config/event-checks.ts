import type { Config } from "./schema.ts";
import { type SumCheck, unless } from "./sum-check.ts";

const PORT_MAX = 65_535;

/** Rules of [events], and of the engine's own. */
export const EVENT_CHECKS: readonly SumCheck[] = [
  {
    keys: ["events.mode", "nats.url"],
    find: ({ events, nats }) =>
      unless(
        events.mode !== "stream" || nats.url !== null,
        "a stream is on a NATS server, and nats.url is not set",
        'write url below [nats], or use mode = "ring"',
      ),
  },
  {
    keys: ["events.zmq", "events.mode"],
    find: ({ events }) =>
      unless(
        events.zmq === null || events.mode !== "off",
        'has no effect with mode = "off"',
        'use mode = "ring", or remove it',
      ),
  },
  {
    keys: ["events.zmq_replay", "events.zmq"],
    find: ({ events }) =>
      unless(
        events.zmqReplay === null || events.zmq !== null,
        "has no effect without zmq",
        "write zmq below [events], or remove it",
      ),
  },
  {
    keys: ["events.zmq", "engine.kv_events"],
    find: ({ events, engine }) =>
      unless(
        events.zmq === null || engine.kvEvents !== null,
        "blocks are told with their tokens there, which the engine's own events alone say",
        "set kv_events below [engine], or remove it",
      ),
  },
  ranksFit("events.zmq", ({ events }) => events.zmq),
  ranksFit("events.zmq_replay", ({ events }) => events.zmqReplay),
  ranksFit("engine.kv_events", ({ engine }) => engine.kvEvents),
  ranksFit("engine.kv_events_replay", ({ engine }) => engine.kvReplay),
  {
    keys: ["engine.kv_events", "engine.kv_events_model"],
    find: ({ engine }) =>
      unless(
        engine.kvEvents === null || engine.kvModel !== null,
        "events of an engine say nothing of its model, and kv_events_model is not set",
        "write kv_events_model below [engine], as requests name it",
      ),
  },
  {
    keys: ["engine.kv_events_replay", "engine.kv_events"],
    find: ({ engine }) =>
      unless(
        engine.kvReplay === null || engine.kvEvents !== null,
        "has no effect without kv_events",
        "write kv_events below [engine], or remove it",
      ),
  },
  {
    keys: ["engine.kv_events_model", "engine.kv_events"],
    find: ({ engine }) =>
      unless(
        engine.kvModel === null || engine.kvEvents !== null,
        "has no effect without kv_events",
        "write kv_events below [engine], or remove it",
      ),
  },
];

/** Each rank has a port of its own, and sockets on disk know no ranks. */
function ranksFit(key: string, pick: (config: Config) => string | null): SumCheck {
  return {
    keys: [key, "engine.kv_events_ranks"],
    find(config) {
      const endpoint = pick(config);
      const { kvRanks } = config.engine;
      if (endpoint === null || kvRanks === 1) return null;
      const port = /:([0-9]+)$/.exec(endpoint)?.[1];
      const fits = port !== undefined && Number(port) + kvRanks - 1 <= PORT_MAX;
      const what = `there is no port for each of ${kvRanks} ranks`;
      return unless(fits, what, "use tcp:// with a lower port, or fewer kv_events_ranks");
    },
  };
}
