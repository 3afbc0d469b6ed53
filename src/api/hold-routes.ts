import { Elysia } from "elysia";
import type { HoldKind } from "../store/pins/index.ts";
import {
  budgetOf,
  holdOf,
  leasesQuery,
  leasesReport,
  pinsQuery,
  pinsReport,
} from "./hold-report.ts";
import type { ControlServices } from "./services.ts";

interface ListQuery {
  readonly limit?: number | undefined;
  readonly after?: number | undefined;
  readonly owner?: string | undefined;
}

/** Who wants which blocks kept, and within which budget. */
export function holdRoutes(control: ControlServices) {
  const list = (kind: HoldKind, { limit = 100, after = 0, owner }: ListQuery) => {
    const of = owner ?? null;
    const page = control.holds({ kind, owner: of, after, max: limit });
    const budget = budgetOf(control.figures(of), of !== null);
    return { holds: page.holds.map(holdOf), next: page.next, budget };
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
          summary: "Pins, hard or soft, a page at a time, and what room there is for more",
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
        detail: { summary: "Leases of what was paused, a page at a time" },
      },
    );
}
