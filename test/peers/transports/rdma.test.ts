import { afterAll, expect, test } from "bun:test";
import { join } from "node:path";
import { systemClock, systemRandom } from "../../../src/core/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import { makeCluster } from "../../support/cluster.ts";
import { describeNative, tempDir } from "../../support/index.ts";
import { transportContract } from "./contract.ts";
import { LIMITS, regionOf } from "./contract-kit.ts";
import { meetIn } from "./rdma-kit.ts";
import { maker } from "./rdma-maker.ts";

afterAll(meetIn(tempDir()));

await transportContract(join(import.meta.dir, "rdma-maker.ts"));

describeNative("an RDMA transport", () => {
  test("does not encrypt payload, and reads exposed memory", async () => {
    const parts = {
      clock: systemClock,
      random: systemRandom,
      native: loadNative(),
      limits: LIMITS,
    };
    const trust = makeCluster().trust("host");
    await using one = maker.make({ ...parts, trust, log: () => undefined });
    const own = { encrypted: false, direct: true, early: false, oneSided: true };
    expect(one.capabilities).toEqual(own);
    await one.register(regionOf(0));
    expect(one.unsupported).toBeNull();
    await one.reload();
    expect(one.inboundConnections).toBe(0);
  });
});
