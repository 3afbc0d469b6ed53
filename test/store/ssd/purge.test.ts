import { expect } from "bun:test";
import { existsSync } from "node:fs";
import { LAYER_ALL } from "../../../src/core/index.ts";
import { purgeBlocks } from "../../../src/store/index.ts";
import { describeNative, faultCounts } from "../../support/index.ts";
import { digestOf } from "../names.ts";
import type { SsdKit } from "./ssd-kit.ts";
import { useSsdKit } from "./use-kit.ts";

function purge({ store }: SsdKit, ...names: string[]) {
  return purgeBlocks(
    store,
    names.map((name) => ({ digest: digestOf(name), layer: LAYER_ALL })),
  );
}

describeNative("SSD tier: a purged block does not return", () => {
  const it = useSsdKit();

  for (const [where, inRam] of [
    ["which is in RAM, too", true],
    ["which was on SSD alone", false],
  ] as const) {
    it(`a purge of a block being evicted waits for its file, ${where}`, {}, async ({
      host,
      kit,
      faults,
    }) => {
      await kit.engine().put("a");
      await kit.settled();
      if (!inRam) kit.leaveRam();
      faults("remove.unlink:1:freeze");
      void kit.ssd.room.drop(kit.nodeOf("a"));
      let outcomes: string[] | null = null;
      const purged = purge(kit, "a").then((answer) => {
        outcomes = answer;
      });
      await kit.clock.advanceAsync(1_000, 250);
      expect(existsSync(kit.fileOf("a"))).toBe(true);
      expect(outcomes).toBeNull();
      faults("count");
      await purged;
      expect(outcomes!).toEqual([inRam ? "done" : "missing"]);
      expect(existsSync(kit.fileOf("a"))).toBe(false);
      expect(faultCounts(host.native)["sync.sync"]).toBe(1);
    });
  }

  it("a file that cannot be removed is reported", {}, async ({ kit, faults }) => {
    await kit.engine().put("a", "b");
    await kit.settled();
    kit.leaveRam();
    faults("remove.unlink:1+:EIO");
    await kit.ssd.room.drop(kit.nodeOf("a"));
    expect(await purge(kit, "a", "none")).toEqual(["failed", "missing"]);
    expect(await purge(kit, "b")).toEqual(["failed"]);
    faults("");
    await kit.until(() => kit.files().length === 0);
    expect(await purge(kit, "a", "b")).toEqual(["missing", "missing"]);
  });

  it("a hung disk is reported, and not waited for", {}, async ({ kit, faults }) => {
    await kit.engine().put("a", "b");
    await kit.settled();
    kit.leaveRam();
    faults("remove.unlink:1+:freeze;store.write:1+:freeze");
    const first = purge(kit, "a");
    const written = kit.engine();
    await written.put("c");
    const second = purge(kit, "c");
    const purged = await kit.clock.advanceUntil(Promise.all([first, second]), 250);
    expect(purged).toEqual([["failed"], ["failed"]]);
    // The disk counts as hung. An absent block may still return, since its removal waits.
    expect(await purge(kit, "b", "none")).toEqual(["failed", "failed"]);
    expect(kit.engine().get("a", "b")).toEqual(["miss", "miss"]);
    faults("");
    await kit.until(() => kit.files().length === 0, "the removals");
    await kit.settled();
    expect(kit.engine().get("c")).toEqual(["miss"]);
    await kit.clock.advanceAsync(250);
    expect(await purge(kit, "a", "b", "c")).toEqual(["missing", "missing", "missing"]);
  });

  it("a block in use is still written to SSD", {}, async ({ kit, faults }) => {
    faults("store.write:1:freeze");
    const engine = kit.engine();
    await engine.put("a");
    const held = await engine.fetch(["a"], { deadlineMs: 1_000 });
    expect(held[0]!.outcome).toBe("ok");
    expect(await purge(kit, "a")).toEqual(["held"]);
    faults("");
    await kit.settled();
    expect(kit.ssdHolds("a")).toBe(true);
  });

  it("a removal without a sync is reported as not durable", {}, async ({ host, kit, faults }) => {
    await kit.engine().put("a", "b");
    await kit.settled();
    kit.leaveRam();
    await kit.ssd.room.drop(kit.nodeOf("a"));
    faults("sync.sync:1:EIO");
    expect(await purge(kit, "a")).toEqual(["failed"]);
    expect(await purge(kit, "a")).toEqual(["missing"]);
    faults("count");
    // Nothing was removed since: no sync is needed.
    expect(await purge(kit, "a")).toEqual(["missing"]);
    expect(faultCounts(host.native)["sync.sync"]).toBeUndefined();
  });
});
