import { Elysia, t } from "elysia";
import type { BudgetFigures, PinInfo, PinKind } from "../store/pins/index.ts";
import {
  afterQuery,
  bytes,
  count,
  limitQuery,
  nextNumber,
  nullable,
  oneOf,
  seconds,
  snakeCase,
} from "./fields.ts";
import type { ControlServices } from "./services.ts";

interface ListQuery {
  readonly limit?: number | undefined;
  readonly after?: number | undefined;
  readonly owner?: string | undefined;
}

/** Returns the routes that list pins and leases, with their budget. */
export function pinRoutes(control: ControlServices) {
  const list = (kind: PinKind, { limit = 100, after = 0, owner }: ListQuery) => {
    const of = owner ?? null;
    const page = control.holds.list({ kind, owner: of, after, max: limit });
    const budget = budgetOf(control.holds.figures(of), of !== null);
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

const entry = t.Object({
  id: count("Increases with each pin and lease"),
  kind: oneOf(["pin", "retain", "lease"]),
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

const entries = t.Array(entry, { description: "Entries, ordered by id" });
const pinsReport = t.Object({ pins: entries, next: nextNumber, budget });
const leasesReport = t.Object({ leases: entries, next: nextNumber, budget });

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
  kind: t.Optional(oneOf(["pin", "retain"], "`pin` (hard, the default) or `retain` (soft)")),
});

function entryOf({ remainingMs, ageMs, idleMs, ...info }: PinInfo) {
  return {
    ...snakeCase(info),
    remaining_seconds: remainingMs === null ? null : secondsOf(remainingMs),
    age_seconds: secondsOf(ageMs),
    retain_seconds: idleMs === null ? null : secondsOf(idleMs),
  };
}

function budgetOf(figures: BudgetFigures, hasOwner: boolean) {
  const { ownerBudgetBytes, ownerUsedBytes, ...host } = figures;
  return snakeCase(hasOwner ? { ...host, ownerBudgetBytes, ownerUsedBytes } : host);
}

/** Returns the remaining time in seconds; 0 if it is over. */
function secondsOf(ms: number): number {
  return Number((Math.max(0, ms) / 1_000).toFixed(3));
}
