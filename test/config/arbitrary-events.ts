import fc from "fast-check";
import type { Config } from "../../src/config/index.ts";

type Events = Config["events"];
type EngineEvents = Pick<
  Config["engine"],
  "kvEvents" | "kvReplay" | "kvModel" | "kvBlockTokens" | "kvRanks"
>;

const tcp = fc
  .tuple(
    fc.constantFrom("127.0.0.1", "gpu-1.example", "[fd00::3]"),
    fc.integer({ min: 1, max: 65_000 }),
  )
  .map(([host, port]) => `tcp://${host}:${port}`);
const socket = fc.stringMatching(/^[a-z]{1,20}$/).map((file) => `ipc:///run/${file}.sock`);
const endpoint = fc.oneof(tcp, socket);

/** Sections [events] of every shape; `eventsOf` makes them fit the rest. */
export const arbitraryEvents: fc.Arbitrary<Events> = fc.record({
  mode: fc.constantFrom<Events["mode"]>("off", "ring", "stream"),
  snapshotMessages: fc.integer({ min: 1, max: 100_000_000 }),
  zmq: fc.option(endpoint),
  zmqReplay: fc.option(endpoint),
  zmqTopic: fc.stringMatching(/^[!-~]{0,20}$/),
});

/** A stream needs a server, ranks need ports, and whoever is off says nothing. */
export function eventsOf(events: Events, hasNats: boolean, engine: EngineEvents): Events {
  const mode = events.mode === "stream" && !hasNats ? "ring" : events.mode;
  const { kvRanks, kvEvents } = engine;
  const fits = (at: string | null) => at === null || kvRanks === 1 || at.startsWith("tcp");
  const zmq = mode !== "off" && kvEvents !== null && fits(events.zmq) ? events.zmq : null;
  return {
    ...events,
    mode,
    zmq,
    zmqReplay: zmq !== null && fits(events.zmqReplay) ? events.zmqReplay : null,
  };
}

/** What [engine] says of the engine's own events. */
export const arbitraryEngineEvents: fc.Arbitrary<EngineEvents> = fc
  .integer({ min: 1, max: 4 })
  .chain((kvRanks) =>
    fc.record({
      kvRanks: fc.constant(kvRanks),
      kvEvents: fc.option(kvRanks === 1 ? endpoint : tcp),
      kvReplay: fc.option(kvRanks === 1 ? endpoint : tcp),
      kvModel: fc.stringMatching(/^[!-~]{1,20}$/),
      kvBlockTokens: fc.integer({ min: 1, max: 65_536 }),
    }),
  )
  .map(({ kvEvents, kvReplay, kvModel, ...rest }) => ({
    ...rest,
    kvEvents,
    kvReplay: kvEvents === null ? null : kvReplay,
    kvModel: kvEvents === null ? null : kvModel,
  }));
