import type { DatabaseKind } from "../store/open-database.ts";
import holds from "./migrations/0000-holds.sql" with { type: "text" };
import parts from "./migrations/0001-parts.sql" with { type: "text" };
import issuerOrder from "./migrations/0002-issuer-order.sql" with { type: "text" };
import leaseGrants from "./migrations/0003-lease-grants.sql" with { type: "text" };

/** "HRTL", and every file of `migrations/` in order. A released one is never changed. */
export const LEDGER: DatabaseKind = {
  applicationId: 0x4852544c,
  migrations: [
    { name: "0000-holds", sql: holds },
    { name: "0001-parts", sql: parts },
    { name: "0002-issuer-order", sql: issuerOrder },
    { name: "0003-lease-grants", sql: leaseGrants },
  ],
};
