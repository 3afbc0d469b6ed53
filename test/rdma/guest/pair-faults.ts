/** What breaks between two hosts, and what becomes of the pulls that are under way. */
import { afterEach, describe, expect, test } from "bun:test";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import {
  chalk,
  MIB,
  placesFor,
  pullAndProve,
  pullPlaces,
  untouchedPlace,
} from "../../peers/transports/contract-kit.ts";
import { waitFor } from "../../support/index.ts";
import { CUT } from "./places.ts";
import { lose, setRail } from "./shell.ts";
import { World } from "./world.ts";

const COUNTERS = "/sys/class/infiniband/rxe0/ports/1/hw_counters";
const LOSS_PERCENT = 2;
/** A link that is dead is known to be so after this time, whatever killed it. */
const ENDED_MS = 30_000;

/** What the device counted of things that had to be done again. */
function retries(): number {
  const names = readdirSync(COUNTERS).filter((name) => /retry|retransmit|out_of_seq/.test(name));
  return names.reduce((sum, name) => {
    return sum + Number(readFileSync(`${COUNTERS}/${name}`, "utf8"));
  }, 0);
}

const GONE = ["broken", "stalled", "unreachable"];

describe("between two hosts", () => {
  afterEach(async () => {
    await lose(0);
    await setRail("up");
  });

  test(`${LOSS_PERCENT} % of packets lost both ways: all comes whole`, async () => {
    await using world = await World.make({ progressMs: 20_000 });
    const { seeds, items } = await world.put([1, 65_537, 300_000, MIB, 3 * MIB]);
    await using link = await world.link();
    const before = retries();
    await lose(LOSS_PERCENT);
    await world.far.order("lose", { percent: LOSS_PERCENT });
    for (let round = 0; round < 2; round++) {
      await pullAndProve(world.near, link, seeds, items, world.twin);
    }
    await world.far.order("lose", { percent: 0 });
    expect(retries()).toBeGreaterThan(before);
    expect(link.fault).toBeNull();
  });

  test("a holder that is killed in the middle is a fault, and writes no more", async () => {
    await using world = await World.make();
    const { items } = await world.put([8 * MIB, 8 * MIB, 8 * MIB]);
    await world.far.order("rule", { name: "hold" });
    await using link = await world.link();
    const places = placesFor(items);
    chalk(world.near.region, places);
    let isKilled = false;
    const onBytes = () => {
      if (!isKilled) void world.kill();
      isKilled = true;
    };
    const { fault, results } = await pullPlaces(link, places, { onBytes });
    expect(GONE).toContain(fault!.kind);
    expect(results[2]).toBeUndefined();
    expect(untouchedPlace(world.near.region, places[2]!)).toBe(true);
    const fate = await Promise.race([link.ended, Bun.sleep(ENDED_MS)]);
    expect(GONE).toContain(fate!.kind);
    expect((await pullPlaces(link, places)).fault).not.toBeNull();
  });

  test("an asker that is killed: what it was lent comes back, and its link goes", async () => {
    await using world = await World.make({ progressMs: 2_000 });
    const { server, transport } = world.near;
    for (const seed of [1, 2, 3]) server.put(seed, 8 * MIB);
    const to = await world.listen();
    const order = { to, worker: "near", seeds: [1, 2, 3], bytes: 8 * MIB };
    world.far.order("pull", order).catch(() => undefined);
    await waitFor(() => server.lent > 0, 20_000);
    await world.kill();
    await waitFor(() => server.lent === 0 && server.serving === 0, ENDED_MS);
    await waitFor(() => transport.inboundConnections === 0, ENDED_MS);
  });

  test("a rail that goes down ends the link, and up again it carries a new one", async () => {
    await using world = await World.make();
    const { seeds, items } = await world.put([8 * MIB, 8 * MIB, 64 * 1024]);
    await world.far.order("rule", { name: "hold" });
    const link = await world.link();
    const places = placesFor(items);
    chalk(world.near.region, places);
    let isDown: Promise<void> | null = null;
    const onBytes = () => {
      isDown ??= setRail("down");
    };
    const { fault, results } = await pullPlaces(link, places, { onBytes });
    await isDown!;
    expect(GONE).toContain(fault!.kind);
    expect(results[2]).toBeUndefined();
    expect(untouchedPlace(world.near.region, places[2]!)).toBe(true);
    await Promise.race([link.ended, Bun.sleep(ENDED_MS)]);
    expect(link.fault).not.toBeNull();
    await link[Symbol.asyncDispose]();
    await world.quiet();
    await setRail("up");
    const again = await waitFor(() => world.link().catch(() => null), ENDED_MS, "a new link");
    const two = [items[0]!, items[1]!];
    await pullAndProve(world.near, again, seeds, two, world.twin);
    await again[Symbol.asyncDispose]();
  });
});

describe("a host without power", () => {
  test("is a fault within bounds, and nothing is written after it", async () => {
    await using world = await World.make({ progressMs: 3_000 });
    const { items } = await world.put([8 * MIB, 8 * MIB, 8 * MIB]);
    await world.far.order("rule", { name: "hold" });
    await using link = await world.link();
    const places = placesFor(items);
    chalk(world.near.region, places);
    let isCut = false;
    const onBytes = () => {
      if (!isCut) writeFileSync("/dev/console", `bed: ${CUT}\n`);
      isCut = true;
    };
    world.forsake();
    const startMs = performance.now();
    const { fault } = await pullPlaces(link, places, { onBytes });
    expect(GONE).toContain(fault!.kind);
    expect(performance.now() - startMs).toBeLessThan(ENDED_MS);
    expect(untouchedPlace(world.near.region, places[2]!)).toBe(true);
    const fate = await Promise.race([link.ended, Bun.sleep(ENDED_MS)]);
    expect(GONE).toContain(fate!.kind);
  });
});
