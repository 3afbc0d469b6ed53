import { Elysia, t } from "elysia";
import { toldEvent } from "../observability/activity/index.ts";
import { afterQuery, count, limitQuery, nullable } from "./fields.ts";
import type { ControlServices } from "./services.ts";

const event = t.Object({
  sequence: count("From 1, without gaps, since the agent's start"),
  time: t.String({ format: "date-time", description: "UTC" }),
  kind: t.String({ description: "`hold_...`, `peer_...`, `command`" }),
  hold: t.Optional(t.String({ description: "`pin`, `retain` or `lease`" })),
  owner: t.Optional(t.String()),
  name: t.Optional(nullable(t.String({ description: "Of a lease" }))),
  tier: t.Optional(t.String({ description: "Where room was needed" })),
  why: t.Optional(t.String()),
  peer: t.Optional(t.String({ description: "Worker id of another host" })),
  transport: t.Optional(t.String({ description: "To the peer: `stream`, `quic`" })),
  cooldown_ms: t.Optional(count("How long it is left alone, milliseconds")),
  after_ms: t.Optional(count("How long it took already, milliseconds")),
  key: t.Optional(t.String({ description: "Key of a block, in hex" })),
  purged: t.Optional(count("Blocks removed because nothing else held them")),
  type: t.Optional(t.String({ description: "Of a command" })),
  issuer: t.Optional(t.String()),
  id: t.Optional(nullable(t.String())),
  status: t.Optional(t.String()),
  blocks: t.Optional(count("Blocks")),
  bytes: t.Optional(count("Bytes")),
});

const eventsReport = t.Object(
  {
    events: t.Array(event, { description: "The oldest first" }),
    next: count("`after` of the next page, also where there is none yet"),
    lost: count("Events between `after` and the first one here that are not kept any more"),
  },
  {
    examples: [
      {
        events: [
          {
            sequence: 41,
            time: "2026-01-01T00:00:00.000Z",
            kind: "hold_relieved",
            hold: "pin",
            owner: "system-prompts",
            name: null,
            blocks: 46,
            bytes: 482_344_960,
            tier: "ram",
            why: "12 MiB were needed and nothing else could go",
          },
        ],
        next: 41,
        lost: 0,
      },
    ],
  },
);

const eventsQuery = t.Object({
  after: afterQuery("`next` of the page before; 0: from the first that is kept"),
  limit: limitQuery("Events at most"),
});

/** What happened to pins, leases and commands, for those who poll. */
export function eventRoutes(control: ControlServices) {
  return new Elysia().get(
    "/v1/events",
    ({ query: { after = 0, limit = 100 } }) => {
      const { events, last, lost } = control.events(after, limit);
      const next = events.at(-1)?.sequence ?? Math.min(after, last);
      return { events: events.map(toldEvent), next, lost };
    },
    {
      query: eventsQuery,
      response: eventsReport,
      detail: { summary: "Holds that ended by themselves, peers, and commands, in their order" },
    },
  );
}
