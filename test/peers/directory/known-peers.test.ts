import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { WorkerId } from "../../../src/core/index.ts";
import { KnownPeers } from "../../../src/peers/directory/index.ts";
import { ManualClock } from "../../support/index.ts";
import { announcementOf } from "./announcements.ts";

const [A, B, SELF] = ["a", "b", "self"] as WorkerId[] as [WorkerId, WorkerId, WorkerId];
const PLACE = { stream: { host: "10.9.9.9", port: 1 } };

function membersOf(announcedMax = 4) {
  const clock = new ManualClock();
  const lines: string[] = [];
  const log = (_: string, text: string) => void lines.push(text);
  const members = new KnownPeers({ self: SELF, clock, announcedMax, log });
  const changes: string[] = [];
  members.onChange(({ kind, peer }) => void changes.push(`${kind} ${peer.worker}`));
  return { clock, members, changes, lines };
}

describe("known peers", () => {
  test("appear with their first announcement, and are removed after three silent intervals", () => {
    const { clock, members, changes } = membersOf();
    members.heard(announcementOf("a"));
    members.heard(announcementOf("a"));
    expect(members.get(A)).toMatchObject({ origin: "announced", incarnation: 1n, heardMs: 0 });
    clock.advance(2_900);
    expect(members.get(A)).not.toBeNull();
    members.heard(announcementOf("a"));
    clock.advance(2_900);
    expect(members.list()).toHaveLength(1);
    clock.advance(600);
    expect(members.list()).toEqual([]);
    expect(changes).toEqual(["came a", "went a"]);
  });

  test("are not removed while their announcements wait to be read by a stalled process", () => {
    const { clock, members } = membersOf();
    members.heard(announcementOf("a"));
    clock.jumpWall(3_600_000);
    clock.stall(60_000);
    expect(members.get(A)).not.toBeNull();
    clock.advance(4_000);
    expect(members.get(A)).toBeNull();
  });

  test("are removed by a goodbye of the current incarnation only", () => {
    const { members, changes } = membersOf();
    members.heard(announcementOf("a", { incarnation: 1n }));
    members.heard(announcementOf("a", { incarnation: 2n }));
    members.left(announcementOf("a", { incarnation: 1n }));
    expect(members.get(A)?.incarnation).toBe(2n);
    members.left(announcementOf("a", { incarnation: 2n }));
    expect(changes).toEqual(["came a", "restarted a", "went a"]);
  });

  test("with the same name: the latest counts, and one warning is logged", () => {
    const { clock, members, changes, lines } = membersOf();
    const say = (incarnation: bigint) => members.heard(announcementOf("a", { incarnation }));
    for (let i = 0; i < 20; i++) {
      for (const incarnation of [1n, 2n]) say(incarnation);
      clock.advance(1_000);
    }
    expect(changes).toEqual(["came a", "restarted a"]);
    expect(lines).toEqual(["two hosts announce the same worker name; using the latest"]);
    expect(members.get(A)?.incarnation).toBe(2n);
    // A single restart is allowed.
    say(3n);
    say(2n);
    expect(changes).toEqual(["came a", "restarted a", "restarted a"]);
    members.left(announcementOf("a", { incarnation: 3n }));
    say(1n);
    expect(members.get(A)?.incarnation).toBe(1n);
    // The same for a host in the configuration.
    members.setListed([{ worker: A, endpoints: PLACE }]);
    say(2n);
    say(1n);
    expect(members.get(A)?.incarnation).toBe(2n);
    clock.advance(4_000);
    say(1n);
    expect(members.get(A)?.incarnation).toBe(1n);
    expect(lines).toHaveLength(2);
  });

  test("from the configuration keep their address; the rest is announced", () => {
    const { clock, members, changes } = membersOf();
    members.setListed([{ worker: A, endpoints: PLACE }]);
    expect(members.get(A)).toEqual({
      worker: A,
      incarnation: 0n,
      endpoints: PLACE,
      hardware: null,
      namespaces: null,
      origin: "static",
      heardMs: null,
    });
    members.heard(announcementOf("a"));
    expect(members.get(A)).toMatchObject({ endpoints: PLACE, origin: "static", incarnation: 1n });
    expect(members.get(A)?.hardware?.cores).toBe(64);
    clock.advance(10_000);
    expect(members.get(A)).toMatchObject({ endpoints: PLACE, hardware: null, namespaces: null });
    members.setListed([{ worker: B, endpoints: PLACE }]);
    expect(changes).toEqual(["came a", "changed a", "changed a", "went a", "came b"]);
  });

  test("never include this host", () => {
    const { members } = membersOf();
    members.setListed([{ worker: SELF, endpoints: PLACE }]);
    members.heard(announcementOf("self", { incarnation: 9n }));
    expect(members.list()).toEqual([]);
  });

  test("that were silent for longest are removed first, static ones never", () => {
    const { clock, members, changes } = membersOf(2);
    members.setListed([{ worker: A, endpoints: PLACE }]);
    for (const name of ["x", "y", "z"]) {
      members.heard(announcementOf(name, { everyMs: 60_000 }));
      clock.advance(10);
    }
    members.heard(announcementOf("y", { everyMs: 60_000 }));
    members.heard(announcementOf("w", { everyMs: 60_000 }));
    expect(
      members
        .list()
        .map(({ worker }) => worker)
        .sort() as string[],
    ).toEqual(["a", "w", "y"]);
    expect(changes.filter((change) => change.startsWith("went"))).toEqual(["went x", "went z"]);
  });

  test("equal a plain list after any sequence of announcements", () => {
    const name = fc.constantFrom("a", "b", "c");
    const step = fc.oneof(
      fc.record({ do: fc.constant("heard" as const), name, incarnation: fc.bigInt(1n, 2n) }),
      fc.record({ do: fc.constant("left" as const), name, incarnation: fc.bigInt(1n, 2n) }),
      fc.record({ do: fc.constant("listed" as const), names: fc.uniqueArray(name) }),
      fc.record({ do: fc.constant("wait" as const), ms: fc.constantFrom(500, 1_500, 3_500) }),
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 40 }), (steps) => {
        const { clock, members } = membersOf(100);
        let listed = new Set<string>();
        const heard = new Map<string, { incarnation: bigint; untilMs: number }>();
        /** Earlier incarnations, as long as one of the name is heard. */
        const formers = new Map<string, Set<bigint>>();
        for (const one of steps) {
          if (one.do === "heard") {
            const untilMs = clock.monotonicMs() + 3_000;
            const before = heard.get(one.name);
            const gone = before === undefined ? new Set<bigint>() : formers.get(one.name)!;
            formers.set(one.name, gone);
            const isSame = before === undefined || before.incarnation === one.incarnation;
            const counts = isSame || !gone.has(one.incarnation);
            if (!isSame && counts) gone.add(before.incarnation);
            if (counts) heard.set(one.name, { incarnation: one.incarnation, untilMs });
            members.heard(announcementOf(one.name, { incarnation: one.incarnation }));
          } else if (one.do === "left") {
            if (heard.get(one.name)?.incarnation === one.incarnation) heard.delete(one.name);
            members.left(announcementOf(one.name, { incarnation: one.incarnation }));
          } else if (one.do === "listed") {
            for (const name of listed)
              if (!one.names.some((kept) => kept === name)) heard.delete(name);
            listed = new Set(one.names);
            members.setListed(
              one.names.map((worker) => ({ worker: worker as WorkerId, endpoints: PLACE })),
            );
          } else {
            clock.advance(one.ms);
            for (const [worker, { untilMs }] of heard) {
              if (clock.monotonicMs() >= untilMs) heard.delete(worker);
            }
          }
          const wanted = [...new Set([...listed, ...heard.keys()])].sort();
          expect(
            members
              .list()
              .map(({ worker }) => worker as string)
              .sort(),
          ).toEqual(wanted);
          for (const record of members.list()) {
            expect(record.hardware !== null).toBe(heard.has(record.worker));
            const counts = heard.get(record.worker)?.incarnation ?? record.incarnation;
            expect(record.incarnation).toBe(counts);
            expect(record.origin).toBe(listed.has(record.worker) ? "static" : "announced");
          }
        }
      }),
      { seed: 20_261_122, numRuns: 400 },
    );
  });
});
