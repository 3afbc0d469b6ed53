import { expect } from "bun:test";
import type { Grant } from "../../../src/store/index.ts";
import { describeNative } from "../../support/index.ts";
import { GRANTED, type Life, named, ORIGIN, outcomes, useLife, whereIs } from "./lifecycle-kit.ts";

/** The grant of a caller with the role `operate`. */
const OPERATE: Grant = { mayPurge: false, fix: ", and nats.role gives operate: set it" };

const pause = (life: Life, block: string, ttlMs: number, grant: Grant, owner = "o") =>
  life.own.pause([named(block)], { lease: "nap", owner, ttlMs, grant });

describeNative("deletion of blocks requires a grant", () => {
  const it = useLife();

  it("an expired lease made without the grant removes no block", {}, async (t) => {
    const { kit, life, where } = t;
    await kit.engine().put("a");
    expect(outcomes((await pause(life, "a", 1, OPERATE)).results)).toEqual(["done"]);
    await kit.until(() => life.events.last === 1, "the expiry");
    const { event } = life.events.page(0, 9).events[0]!;
    expect(event).toMatchObject({ kind: "hold_expired", name: "nap", blocks: 1, purged: 0 });
    await kit.settled();
    expect(where("a")).toEqual(["ssd"]);
    expect(kit.files()).toHaveLength(1);
    expect(life.holds.lease("nap")).toBeNull();
  });

  it("the grant of a lease survives a restart, and so does its absence", {}, async (t) => {
    const { kit, life, restart } = t;
    await kit.engine().put("a", "b");
    await kit.settled();
    await pause(life, "a", 60_000, OPERATE);
    const terms = { lease: "granted", owner: "o", ttlMs: 60_000, grant: GRANTED };
    await life.own.pause([named("b")], terms);
    const next = await restart();
    await next.kit.until(() => next.life.events.last === 2, "both expiries");
    await next.kit.settled();
    expect(["a", "b"].map((block) => whereIs(next.kit, block))).toEqual(["ssd", ""]);
  });

  it("blocks paused without the grant stay when a granted lease expires", {}, async (t) => {
    const { kit, life, where } = t;
    await kit.engine().put("a", "b");
    await pause(life, "a", 60_000, GRANTED);
    expect(outcomes((await pause(life, "b", 1, OPERATE)).results)).toEqual(["done"]);
    await kit.until(() => life.events.last === 1, "the expiry");
    await kit.settled();
    expect(where("a", "b")).toEqual(["ssd", "ssd"]);
  });

  it("without the grant another owner's lease is extended, and never shortened", {}, async (t) => {
    const { kit, life, where } = t;
    await kit.engine().put("a");
    await pause(life, "a", 60_000, GRANTED);
    const renew = (ttlMs: number, owner: string, grant = OPERATE) =>
      life.own.renewLease("nap", ttlMs, { owner, grant });
    const { results } = await renew(1, "another");
    expect(results[0]).toEqual({
      outcome: "rejected",
      reason:
        "forbidden: a shorter time for a lease of o needs the role purge, " +
        "and nats.role gives operate: set it",
    });
    expect(life.holds.lease("nap")!.remainingMs).toBe(60_000);
    expect(outcomes((await renew(70_000, "another")).results)).toEqual(["done"]);
    expect(life.holds.lease("nap")!.remainingMs).toBe(70_000);
    expect(outcomes((await renew(1_000, "another", GRANTED)).results)).toEqual(["done"]);
    await kit.until(() => life.events.last === 1, "the expiry");
    await kit.settled();
    expect(where("a")).toEqual([""]);
  });

  it("an owner without the grant may shorten its lease, which removes no block", {}, async (t) => {
    const { kit, life, where } = t;
    await kit.engine().put("a");
    await pause(life, "a", 60_000, GRANTED);
    const report = await life.own.renewLease("nap", 1_000, { owner: "o", grant: OPERATE });
    expect(outcomes(report.results)).toEqual(["done"]);
    await kit.until(() => life.events.last === 1, "the expiry");
    await kit.settled();
    expect(where("a")).toEqual(["ssd"]);
  });

  it("a revocation that a crash interrupted is completed after the restart", {}, async (t) => {
    const { kit, life, restart, faults } = t;
    await kit.engine().put("a");
    await kit.settled();
    await pause(life, "a", 60_000, OPERATE);
    faults("remove.unlink:1+:EIO");
    expect(outcomes((await life.own.revokeLease("nap", ORIGIN)).results)).toEqual(["deferred ssd"]);
    faults("");
    const next = await restart();
    await next.kit.until(() => next.kit.files().length === 0, "the removal");
  });

  it("a mark without the grant removes no block whose only copy is on SSD", {}, async (t) => {
    const { kit, life, where } = t;
    await kit.engine().put("a", "b");
    await kit.settled();
    await pause(life, "a", 60_000, OPERATE);
    await life.own.renewLease("nap", 1, { owner: "o", grant: OPERATE });
    await kit.until(() => life.events.last === 1, "the expiry");
    expect(where("a", "b")).toEqual(["ssd", "ram+ssd"]);
    const mark = (grant: Grant) => life.own.markTransient(["a", "b"].map(named), ORIGIN, { grant });
    const { results } = await mark(OPERATE);
    expect(outcomes(results)).toEqual(["rejected forbidden", "done"]);
    expect(results[0]!.reason).toContain("nats.role gives operate: set it");
    expect(where("a", "b")).toEqual(["ssd", "ram"]);
    expect(outcomes((await mark(GRANTED)).results)).toEqual(["done", "already"]);
    expect(where("a")).toEqual([""]);
  });
});
