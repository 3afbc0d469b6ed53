import { Elysia, t } from "elysia";
import { publishedEvent } from "../observability/activity/index.ts";
import { afterQuery, count, limitQuery, nullable } from "./fields.ts";
import type { ControlServices } from "./services.ts";

const event = t.Object({
  sequence: count("Number of the event, from 1 without gaps since the agent's start"),
  time: t.String({ format: "date-time", description: "UTC" }),
  kind: t.String({ description: "`hold_...`, `peer_...`, `command`" }),
  hold: t.Optional(t.String({ description: "`pin`, `retain` or `lease`" })),
  owner: t.Optional(t.String()),
  name: t.Optional(nullable(t.String({ description: "Name of the lease" }))),
  tier: t.Optional(t.String({ description: "Tier that needed room" })),
  why: t.Optional(t.String()),
  peer: t.Optional(t.String({ description: "Worker id of a peer" })),
  transport: t.Optional(t.String({ description: "Transport to the peer: `stream`, `quic`" })),
  cooldown_ms: t.Optional(count("Time for which the peer is not used, milliseconds")),
  after_ms: t.Optional(count("Duration so far, milliseconds")),
  key: t.Optional(t.String({ description: "Key of a block, in hex" })),
  purged: t.Optional(count("Blocks removed because nothing else protected them")),
  type: t.Optional(t.String({ description: "Type of the command" })),
  issuer: t.Optional(t.String()),
  id: t.Optional(nullable(t.String())),
  status: t.Optional(t.String()),
  blocks: t.Optional(count("Blocks")),
  bytes: t.Optional(count("Bytes")),
});

const eventsReport = t.Object({
  events: t.Array(event, { description: "Events, oldest first" }),
  next: count("`after` of the next page, also if it has no event yet"),
  lost: count("Events after `after` that are no longer kept"),
});

const eventsQuery = t.Object({
  after: afterQuery("`next` of the previous page; 0: from the first kept event"),
  limit: limitQuery("Maximum events"),
});

/** Returns the route that lists events of pins, leases and commands, for clients that poll. */
export function eventRoutes(control: ControlServices) {
  return new Elysia().get(
    "/v1/events",
    ({ query: { after = 0, limit = 100 } }) => {
      const { events, last, lost } = control.events.page(after, limit);
      const next = events.at(-1)?.sequence ?? Math.min(after, last);
      return { events: events.map(publishedEvent), next, lost };
    },
    {
      query: eventsQuery,
      response: eventsReport,
      detail: {
        summary: "Events of expired or evicted pins and leases, peers, and commands, in order",
      },
    },
  );
}
