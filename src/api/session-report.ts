import { type Static, t } from "elysia";
import { bytes, count } from "./fields.ts";

const tierUse = t.Object({ blocks: count("Blocks"), bytes: bytes("Their length") });

/** A conversation: what of the path to its last block is where. */
export const sessionReport = t.Object({
  id: t.String({
    pattern: "^[0-9]{1,20}$",
    description: "The engine's number for it; 64 bits, as text so that no reader rounds it",
  }),
  namespace: t.String({ pattern: "^[0-9a-f]{64}$", description: "Namespace key, in hex" }),
  idle_seconds: t.Number({ minimum: 0, description: "Since its last commit" }),
  depth: count("Blocks on its path, also those that are on no tier any more"),
  ram: tierUse,
  ssd: tierUse,
});
export type SessionReport = Static<typeof sessionReport>;

/** Body of `GET /v1/sessions`. */
export const sessionsReport = t.Object({
  sessions: t.Array(sessionReport, { description: "The one committed to longest ago first" }),
  next: t.Nullable(count("`after` of the next page; null: that was all")),
});
export type SessionsReport = Static<typeof sessionsReport>;

/** Body of `GET /v1/sessions/{id}`. */
export const sessionReports = t.Object({
  sessions: t.Array(sessionReport, { description: "One for each namespace that has this number" }),
});

const LIMIT_MAX = 1_000;

export const pageQuery = t.Object({
  limit: t.Optional(
    t.Numeric({
      minimum: 1,
      maximum: LIMIT_MAX,
      multipleOf: 1,
      default: 100,
      description: "Sessions at most; a page is shorter where they are long",
    }),
  ),
  after: t.Optional(
    t.Numeric({
      minimum: 0,
      maximum: Number.MAX_SAFE_INTEGER,
      multipleOf: 1,
      default: 0,
      description: "`next` of the page before",
    }),
  ),
});

export const sessionParams = t.Object({ id: t.String({ pattern: "^[0-9]{1,20}$" }) });
