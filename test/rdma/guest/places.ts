import { join } from "node:path";
import { ROOT } from "../../../scripts/lib/paths.ts";

/** A guest on two networks: RDMA has the rail, all else goes over the other. */
export interface Place {
  readonly rail: string;
  readonly net: string;
}

/** The guest in which the tests run. */
export const NEAR: Place = { rail: "10.77.0.1", net: "10.78.0.1" };
/** The guest that they speak with. */
export const FAR: Place = { rail: "10.77.0.2", net: "10.78.0.2" };

/** Where the far guest takes orders. */
export const ORDERS_PORT = 7_400;

/** Makes the transport under test, as in its contract suite. */
export const MAKER = join(ROOT, "test/peers/transports/rdma-maker.ts");

/** Said on the console of the near guest: the other one is to lose its power. */
export const CUT = "cut";
