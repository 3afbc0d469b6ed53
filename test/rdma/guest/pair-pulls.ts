/** What the contract of transports promises, with a wire between the two hosts. */
import { describe, expect, test } from "bun:test";
import type { PeerHello } from "../../../src/peers/index.ts";
import {
  chalk,
  MIB,
  placesFor,
  pullAndProve,
  pullPlaces,
  tryDial,
  untouchedPlace,
} from "../../peers/transports/contract-kit.ts";
import { makeCluster } from "../../support/cluster.ts";
import { waitFor } from "../../support/index.ts";
import { World } from "./world.ts";

const HELLO: PeerHello = {
  worker: "near" as never,
  incarnation: 77n,
  hardware: { hasRdmaNic: true, rdmaDevices: ["rxe0"], cores: 1, hasAes: true },
};

describe("two hosts on a wire", () => {
  test("calls are answered, and each side knows the other", async () => {
    await using world = await World.make();
    await using link = await world.link();
    expect(link.identity).toMatchObject({ worker: "far", cluster: world.cluster.name });
    const hello = await link.call({ op: "hello", hello: HELLO }, { deadlineMs: 10_000 });
    expect(hello).toEqual({ ok: true, answer: { op: "hello", hello: HELLO } });
    expect((await world.far.order("counts")).unsupported).toBeNull();
  });

  test("blocks of all sizes come whole, where they belong and nowhere else", async () => {
    await using world = await World.make();
    const sizes = [1, 7, 4096, 65_535, 65_536, 65_537, 256 * 1024, MIB + 1, 5_000_000];
    const { seeds, items } = await world.put(sizes);
    await using link = await world.link();
    await pullAndProve(world.near, link, seeds, items, world.twin);
    await waitFor(async () => (await world.far.order("counts")).released === sizes.length, 20_000);
  });

  test("a block that was let go is not read any more", async () => {
    await using world = await World.make();
    const { seeds, items } = await world.put([1, 4096, 65_536, 200_000, MIB + 1]);
    await world.far.order("rule", { name: "wipe" });
    await using link = await world.link();
    await pullAndProve(world.near, link, seeds, items, world.twin);
  });

  test("many small blocks, by several pulls at once on one link", async () => {
    await using world = await World.make();
    const { items } = await world.put(Array.from({ length: 256 }, (_, at) => 4_000 + at));
    await using link = await world.link();
    const places = placesFor(items);
    chalk(world.near.region, places);
    const pulls = Array.from({ length: 8 }, (_, at) => places.slice(at * 32, at * 32 + 32));
    const outcomes = await Promise.all(pulls.map((some) => pullPlaces(link, some)));
    expect(outcomes.map(({ fault }) => fault)).toEqual(pulls.map(() => null));
    for (const [index, { offset, bytesMax }] of places.entries()) {
      expect(world.near.region.firstWrong(offset, bytesMax, BigInt(index + 1))).toBeNull();
    }
  });

  test("a few big blocks, with progress on the way", async () => {
    await using world = await World.make();
    const { seeds, items } = await world.put([8 * MIB, 8 * MIB, 8 * MIB]);
    await using link = await world.link();
    const { told } = await pullAndProve(world.near, link, seeds, items, world.twin);
    expect(told).toEqual([8 * MIB, 8 * MIB, 8 * MIB]);
    expect((await world.far.order("counts")).lentMost).toBeLessThanOrEqual(16);
  });

  test("each block has its own answer, and others are left as they were", async () => {
    await using world = await World.make();
    const { items } = await world.put([50_000, 60_000, 70_000, 80_000, 90_000]);
    await world.far.order("rule", { name: "mixed" });
    await using link = await world.link();
    const wanted = items.map((item, at) => (at === 1 ? { ...item, bytesMax: 59_999 } : item));
    const places = placesFor(wanted);
    chalk(world.near.region, places);
    const { fault, results } = await pullPlaces(link, places);
    expect(fault).toBeNull();
    expect(results.map((result) => result?.kind)).toEqual([
      ...["came", "tooLong", "busy", "refused", "came"],
    ] as never);
    for (const index of [1, 2, 3]) {
      expect(untouchedPlace(world.near.region, places[index]!)).toBe(true);
    }
  });

  test("both ask each other at once", async () => {
    await using world = await World.make();
    const { seeds, items } = await world.put([MIB, MIB]);
    for (const seed of [1, 2, 3]) world.near.server.put(seed, MIB);
    const to = await world.listen();
    await using link = await world.link();
    const order = { to, worker: "near", seeds: [1, 2, 3], bytes: MIB };
    // What this side serves lies at the beginning of its region, what it asks for behind.
    const places = placesFor(items).map((place) => ({ ...place, offset: place.offset + 8 * MIB }));
    const [back, { fault }] = await Promise.all([
      world.far.order("pull", order),
      pullPlaces(link, places),
    ]);
    expect(back).toEqual({ fault: null, right: 3 });
    expect(fault).toBeNull();
    for (const [index, { offset }] of places.entries()) {
      const seed = BigInt(seeds[index]!);
      expect(world.near.region.firstWrong(offset, MIB, seed)).toBeNull();
    }
  });

  test("pulls that were cancelled leave nothing behind", async () => {
    await using world = await World.make();
    const { items } = await world.put([2 * MIB]);
    await using link = await world.link();
    const places = placesFor(items);
    for (let i = 0; i < 12; i++) {
      const abort = new AbortController();
      const onBytes = () => void (i % 2 === 0 && abort.abort());
      const { fault } = await pullPlaces(link, places, { signal: abort.signal, onBytes });
      expect(fault === null || fault.kind === "aborted").toBe(true);
    }
    await world.quiet();
    expect((await pullPlaces(link, places)).fault).toBeNull();
  });

  test("a host of another authority gets nothing", async () => {
    await using world = await World.make();
    await world.put([4096]);
    const stranger = makeCluster();
    const before = (await world.far.order("counts")).asked;
    await using other = await World.strangerTo(world, stranger);
    const dialled = await tryDial(other, world.there, "far");
    if (dialled.ok) {
      const said = await dialled.connection.call({ op: "find", names: [] }, { deadlineMs: 10_000 });
      expect(said.ok).toBe(false);
    }
    expect((await world.far.order("counts")).asked).toBe(before);
  });
});
