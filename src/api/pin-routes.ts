import { Elysia, type Static, t } from "elysia";
import type { BudgetFigures, PinInfo, PinKind } from "../store/pins/index.ts";
import { afterQuery, bytes, count, limitQuery, nextNumber, nullable, seconds } from "./fields.ts";
import type { ControlServices } from "./services.ts";

interface ListQuery {
  readonly limit?: number | undefined;
  readonly after?: number | undefined;
  readonly owner?: string | undefined;
}

/** Lists of pins and leases, with their budget. */
export function pinRoutes(control: ControlServices) {
  const list = (kind: PinKind, { limit = 100, after = 0, owner }: ListQuery) => {
    const of = owner ?? null;
    const page = control.holds({ kind, owner: of, after, max: limit });
    const budget = budgetOf(control.figures(of), of !== null);
    return { holds: page.holds.map(entryOf), next: page.next, budget };
  };
  return new Elysia()
    .get(
      "/v1/pins",
      ({ query }) => {
        const { holds: pins, ...rest } = list(query.kind ?? "pin", query);
        return { pins, ...rest };
      },
      {
        query: pinsQuery,
        response: pinsReport,
        detail: {
          summary: "Lists hard or soft pins, with the remaining budget",
        },
      },
    )
    .get(
      "/v1/leases",
      ({ query }) => {
        const { holds: leases, ...rest } = list("lease", query);
        return { leases, ...rest };
      },
      {
        query: leasesQuery,
        response: leasesReport,
        detail: { summary: "Lists leases of paused sessions" },
      },
    );
}

const EXAMPLE = {
  id: 7,
  kind: "pin",
  owner: "system-prompts",
  name: null,
  blocks: 46,
  bytes: 482_344_960,
  remaining_seconds: 3_541.2,
  age_seconds: 58.8,
  priority: null,
  priority_now: null,
  retain_seconds: null,
};

const entry = t.Object({
  id: count("Increases with each pin and lease"),
  kind: t.Union([t.Literal("pin"), t.Literal("retain"), t.Literal("lease")]),
  owner: t.String(),
  name: nullable(t.String({ description: "Name of the lease" })),
  blocks: count("Blocks named, with repetitions"),
  bytes: bytes("Size of these blocks"),
  remaining_seconds: nullable(seconds("Remaining lifetime, null: unlimited")),
  age_seconds: seconds("Age"),
  priority: nullable(count("Priority of a soft pin as requested")),
  priority_now: nullable(t.Number({ description: "Priority of a soft pin now" })),
  retain_seconds: nullable(seconds("Idle time after which the priority halves, null: never")),
});

const budget = t.Object(
  {
    capacity_bytes: bytes("RAM and SSD"),
    host_budget_bytes: bytes("Limit of protected bytes"),
    host_used_bytes: bytes("Protected bytes, ancestors included"),
    owner_budget_bytes: t.Optional(bytes("Limit of this owner")),
    owner_used_bytes: t.Optional(bytes("Protected bytes of this owner")),
  },
  { description: "`owner_...` if the request names one" },
);

const BUDGET = {
  capacity_bytes: 2_199_023_255_552,
  host_budget_bytes: 1_099_511_627_776,
  host_used_bytes: 482_344_960,
};

/** Body of `GET /v1/pins`. */
const pinsReport = t.Object(
  { pins: t.Array(entry, { description: "Entries, ordered by id" }), next: nextNumber, budget },
  { examples: [{ pins: [EXAMPLE], next: null, budget: BUDGET }] },
);
type PinsReport = Static<typeof pinsReport>;

/** Body of `GET /v1/leases`. */
const leasesReport = t.Object(
  { leases: t.Array(entry, { description: "Entries, ordered by id" }), next: nextNumber, budget },
  {
    examples: [
      {
        leases: [{ ...EXAMPLE, kind: "lease", name: "session-abc", owner: "router-1" }],
        next: 7,
        budget: BUDGET,
      },
    ],
  },
);
type PinEntry = Static<typeof entry>;

const OWNER_CHARACTERS_MAX = 128;

const leasesQuery = t.Object({
  limit: limitQuery("Maximum entries"),
  after: afterQuery("`next` of the previous page"),
  owner: t.Optional(
    t.String({ maxLength: OWNER_CHARACTERS_MAX, description: "Only entries of this owner" }),
  ),
});

const pinsQuery = t.Object({
  ...leasesQuery.properties,
  kind: t.Optional(
    t.Union([t.Literal("pin"), t.Literal("retain")], {
      description: "`pin` (hard, the default) or `retain` (soft)",
    }),
  ),
});

function entryOf(info: PinInfo): PinEntry {
  const { id, kind, owner, name, blocks, bytes, priority, priorityNow } = info;
  return {
    id,
    kind,
    owner,
    name,
    blocks,
    bytes,
    priority,
    remaining_seconds: info.remainingMs === null ? null : secondsOf(info.remainingMs),
    age_seconds: secondsOf(info.ageMs),
    priority_now: priorityNow,
    retain_seconds: info.idleMs === null ? null : secondsOf(info.idleMs),
  };
}

function budgetOf(figures: BudgetFigures, hasOwner: boolean): PinsReport["budget"] {
  const { capacityBytes, hostBudgetBytes, hostUsedBytes, ownerBudgetBytes, ownerUsedBytes } =
    figures;
  return {
    capacity_bytes: capacityBytes,
    host_budget_bytes: hostBudgetBytes,
    host_used_bytes: hostUsedBytes,
    ...(hasOwner ? { owner_budget_bytes: ownerBudgetBytes, owner_used_bytes: ownerUsedBytes } : {}),
  };
}

/** Seconds of a duration; 0 if it is over. */
function secondsOf(ms: number): number {
  return Number((Math.max(0, ms) / 1_000).toFixed(3));
}
