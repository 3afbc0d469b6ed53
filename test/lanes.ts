/** `./dev test:NAME`: runs the lane NAME, which `./dev test` leaves out or runs in a short form. */
import { type Lane, runLane } from "./support/lane.ts";

/** Loaded one at a time, because most need native code that is built first. */
const LANES: Readonly<Record<string, () => Promise<{ readonly lane: Lane }>>> = {
  "bench-engines": () => import("./engines/bench-lane.ts"),
  certs: () => import("./certs/lane.ts"),
  clients: () => import("./soak/lane.ts"),
  conformance: () => import("./conformance/lane.ts"),
  corrupt: () => import("./corrupt/lane.ts"),
  crash: () => import("./crash/lane.ts"),
  "demo-engines": () => import("./engines/demo-lane.ts"),
  e2e: () => import("./e2e/lane.ts"),
  engines: () => import("./engines/lane.ts"),
  faults: () => import("./faults/lane.ts"),
  fuzz: () => import("./fuzz/lane.ts"),
  gpu: () => import("./gpu/lane.ts"),
  isolation: () => import("./isolation/lane.ts"),
  nats: () => import("./nats/lane.ts"),
  netns: () => import("./netns/lane.ts"),
  peers: () => import("./peers-faults/lane.ts"),
  power: () => import("./power/lane.ts"),
  proxy: () => import("./router/proxy/lane.ts"),
  rdma: () => import("./rdma/lane.ts"),
  "router-chaos": () => import("./router-chaos/lane.ts"),
};

const [name = "", ...words] = process.argv.slice(2);
const load = LANES[name];
if (load === undefined) {
  console.error(`no lane "${name}": expected one of ${Object.keys(LANES).join(", ")}`);
  process.exit(2);
}
const { lane } = await load();
process.exit(await runLane(name, lane, words));
