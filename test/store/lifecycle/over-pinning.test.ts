import { expect } from "bun:test";
import { describeNative } from "../../support/index.ts";
import { verifyPins } from "../pins/verify-pins.ts";
import type { SsdKit } from "../ssd/ssd-kit.ts";
import { verifyStore } from "../verify-store.ts";
import { type LifeTest, named, outcomes, useLife } from "./lifecycle-kit.ts";

const SLOTS = 8;
const names = (prefix: string, count: number) =>
  Array.from({ length: count }, (_, i) => prefix + i);

/** Stores a block when there is room for it, and acquires it, so that it is not evicted. */
async function putAndHold(kit: SsdKit, name: string): Promise<void> {
  const engine = kit.engine();
  const put = async () => (await engine.put(name))[0];
  let outcome = await put();
  for (let tick = 0; tick < 8 && outcome === "full"; tick++) {
    await kit.clock.advanceAsync(250);
    outcome = await put();
  }
  expect([name, outcome]).toEqual([name, "ok"]);
  expect(engine.acquire([name])[0]!.outcome).toBe("ok");
}

/** Owners of pins that ended for room, in order. */
const relieved = ({ life }: LifeTest): string[] =>
  life.events
    .page(0, 1_000)
    .events.flatMap(({ event }) =>
      event.kind === "hold_relieved" ? [`${event.hold} ${event.owner} ${event.tier}`] : [],
    );

/**
 * Fills RAM with protected blocks: one of a session, one with a soft pin, and pinned ones; then
 * tries to pause one. Returns the outcomes of the pause and the pins.
 */
async function crowd({ kit, life }: LifeTest): Promise<string[]> {
  const blocks = names("p", SLOTS);
  const engine = kit.engine();
  await engine.put(...blocks);
  expect(engine.sessionCommit(7n, "p0")).toBe("ok");
  await life.own.retain([named("p1")], { owner: "soft", priority: 10, idleMs: 60_000 });
  const answers = [...(await life.pause("night", "p2")).results];
  for (const name of blocks.slice(3)) answers.push(...(await life.pin(name, name)).results);
  return outcomes(answers);
}

describeNative("over-pinning on a failing disk", () => {
  const it = useLife();

  for (const fault of ["EIO", "ENOSPC"]) {
    it(`${fault}: pins are deferred, a pause is refused, and every new block finds room`, {
      slots: SLOTS,
      writePolicy: "write_back",
    }, async (test) => {
      const { kit, life, faults, where } = test;
      faults(`store.write:1+:${fault}`);
      expect(await crowd(test)).toEqual(["rejected ssd", ...Array(5).fill("deferred ssd")]);
      await putAndHold(kit, "new0");
      expect([where("p2"), relieved(test)]).toEqual([[""], []]);
      for (const name of names("more", 4)) await putAndHold(kit, name);
      expect(relieved(test)).toEqual(["retain soft ram", "pin p3 ram", "pin p4 ram"]);
      expect(kit.store.sessions.size).toBe(0);
      expect(life.holds.counts()).toMatchObject({ pin: { holds: 3 }, relieved: 3 });
      expect(where("p0", "p1", "p3", "p4", "p5")).toEqual(["", "", "", "", "ram"]);
      verifyStore(kit.store);
      verifyPins(life.holds);
    });
  }

  it("pinned blocks are written when the disk works again, and no more pins end", {
    slots: SLOTS,
    writePolicy: "write_back",
  }, async (test) => {
    const { kit, life, faults, where } = test;
    faults("store.write:1+:EIO");
    await crowd(test);
    await putAndHold(kit, "new0");
    const before = relieved(test);
    faults("");
    await kit.until(
      () =>
        names("p", SLOTS)
          .slice(3)
          .every((name) => kit.ssdHolds(name)),
      "copies",
    );
    for (const name of names("more", 4)) await putAndHold(kit, name);
    expect(relieved(test)).toEqual(before);
    expect(life.holds.counts().pin.holds).toBe(SLOTS - 3);
    expect(where("p3", "p7").every((tiers) => tiers.includes("ssd"))).toBe(true);
  });
});
