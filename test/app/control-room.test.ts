import { expect } from "bun:test";
import { ControlService } from "../../src/app/index.ts";
import { createLogger, Health } from "../../src/observability/index.ts";
import { PeerSource } from "../../src/peers/index.ts";
import type { RetentionLedger } from "../../src/store/index/index.ts";
import { Namespaces } from "../../src/store/index.ts";
import { configOf, NO_FACTS } from "../config/arbitrary-config.ts";
import { FakeLedger } from "../control/plane-kit.ts";
import { named } from "../store/lifecycle/lifecycle-kit.ts";
import { chain } from "../store/names.ts";
import { type KitTest, useSsdKit } from "../store/ssd/use-kit.ts";
import { describeNative } from "../support/index.ts";

const CONFIG = configOf("[kv]\nram_gib = 1\n", NO_FACTS);

function openOver(
  { host, kit }: KitTest,
  ledger: RetentionLedger | null,
  given?: Health,
): Promise<ControlService> {
  const { clock, store, incarnation } = kit;
  const logger = createLogger({ level: "error", format: "text", write: () => undefined, clock });
  const health = given ?? new Health({ clock, log: logger });
  const own = { clock, store, incarnation, logger, health, native: host.native };
  const namespaces = new Namespaces();
  const source = new PeerSource(namespaces);
  const parts = { config: () => CONFIG, namespaces, source, ...own };
  return ControlService.open(parts, ledger, null);
}

describeNative("the control service", () => {
  const it = useSsdKit();

  it("the tree names the owners of a block as receipts do", {}, async (test) => {
    const { kit } = test;
    const service = await openOver(test, null);
    const engine = kit.engine();
    await engine.put(...chain("a/b/c"));
    await kit.settled();
    engine.sessionCommit(5n, "a/b/c");
    await service.lifecycle.pin([named("a/b")], { owner: "o", ttlMs: null });
    const page = await service.inspector.tree({
      ...{ root: named("a"), depthMax: 9, limit: 9, after: null },
    });
    if (page.missing) throw new Error("the root is missing");
    const held = page.blocks.map(({ heldBy }) => heldBy);
    expect(held).toEqual([
      [{ kind: "descendants" }],
      [{ kind: "pin", owner: "o" }],
      [{ kind: "session", name: "5" }],
    ]);
    engine.sessionRelease(5n);
    await service.lifecycle.unpin([named("a/b")], { owner: "o" });
    await service[Symbol.asyncDispose]();
  });

  it("the pin budget is a share of the memory actually available", {}, async (t) => {
    const { slots } = t.kit.store;
    const health = new Health({ clock: t.kit.clock, log: { log: () => undefined } });
    const service = await openOver(t, null, health);
    const ssdBytes = CONFIG.kv.ssdBytes ?? 0;
    expect(service.holds.figures(null).capacityBytes).toBe(slots.arenaBytes + ssdBytes);
    // While the arena grows, its final size counts as the capacity.
    const asIs = Object.getOwnPropertyDescriptor(slots, "readyBytes");
    Object.defineProperty(slots, "readyBytes", { value: 4_096, configurable: true });
    expect(service.holds.figures(null).capacityBytes).toBe(slots.arenaBytes + ssdBytes);
    health.raise("KV_RAM_SHORT", "4KiB of it");
    expect(service.holds.figures(null).capacityBytes).toBe(4_096 + ssdBytes);
    if (asIs === undefined) Reflect.deleteProperty(slots, "readyBytes");
    else Object.defineProperty(slots, "readyBytes", asIs);
    await service[Symbol.asyncDispose]();
  });

  it("a failed restore of pins leaves no timer behind", {}, async (test) => {
    const before = test.kit.clock.pending;
    const ledger = new FakeLedger();
    const broken = { ...ledger.contents };
    Object.defineProperty(ledger, "contents", { value: broken });
    Object.defineProperty(broken, "holds", {
      get: () => {
        throw new Error("boom");
      },
    });
    await expect(openOver(test, ledger)).rejects.toThrow("boom");
    expect(test.kit.clock.pending).toBe(before);
  });
});
