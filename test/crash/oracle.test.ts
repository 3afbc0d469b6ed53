import { describe, expect, test } from "bun:test";
import { type Content, contentOf } from "./content.ts";
import { Oracle } from "./oracle.ts";
import { KillPlan, knownKills } from "./points.ts";

const ID = 3;

function answers(oracle: Oracle, content: Content, before = oracle.legalOf([ID])) {
  return oracle.judge(ID, before, ({ seed }) => seed === content.seed);
}

function stored(oracle: Oracle, generation: number): Content {
  const content = contentOf(ID, generation);
  oracle.commitAnswered(oracle.commitSent(content), true);
  return content;
}

function purged(oracle: Oracle): void {
  oracle.purgeAnswered(oracle.purgeSent([ID]), () => true);
}

describe("the oracle", () => {
  test("takes what was committed, and what may have been", () => {
    const oracle = new Oracle();
    const first = stored(oracle, 1);
    const unanswered = oracle.commitSent(contentOf(ID, 2));
    oracle.nextRun(true);
    expect(answers(oracle, first)).toBe("right");
    expect(answers(oracle, unanswered)).toBe("right");
    expect(answers(oracle, contentOf(ID, 3))).toBe("wrong");
    expect(answers(oracle, contentOf(ID + 1, 1))).toBe("wrong");
  });

  test("does not take what was refused", () => {
    const oracle = new Oracle();
    const refused = oracle.commitSent(contentOf(ID, 1));
    oracle.commitAnswered(refused, false);
    expect(answers(oracle, refused)).toBe("wrong");
  });

  test("knows what was purged when it comes back", () => {
    const oracle = new Oracle();
    const content = stored(oracle, 1);
    const asked = oracle.legalOf([ID]);
    purged(oracle);
    expect(answers(oracle, content)).toBe("resurrected");
    expect(oracle.mayExist(ID, oracle.legalOf([ID]))).toBe(false);
    // It was asked for before: the answer may be of that time.
    expect(answers(oracle, content, asked)).toBe("right");
    stored(oracle, 1);
    expect(answers(oracle, content)).toBe("right");
  });

  test("a purge says nothing of commits that crossed it, and all of earlier runs", () => {
    const oracle = new Oracle();
    const lost = oracle.commitSent(contentOf(ID, 1));
    oracle.nextRun(true);
    const crossing = oracle.commitSent(contentOf(ID, 2));
    const purge = oracle.purgeSent([ID]);
    oracle.commitAnswered(crossing, true);
    oracle.purgeAnswered(purge, () => true);
    // Whether the purge took it, too, is not known: it may be there and need not.
    oracle.persistAnswered(oracle.persistSent());
    expect(oracle.mustHave(ID)).toBe(false);
    expect(answers(oracle, lost)).toBe("resurrected");
    expect(answers(oracle, crossing)).toBe("right");
    const held = oracle.purgeSent([ID]);
    oracle.purgeAnswered(held, () => false);
    expect(answers(oracle, crossing)).toBe("right");
  });

  test("expects what was persisted until it is purged, damaged, or may be evicted", () => {
    const oracle = new Oracle();
    oracle.nextRun(true);
    stored(oracle, 1);
    expect(oracle.mustHave(ID)).toBe(false);
    oracle.persistAnswered(oracle.persistSent());
    oracle.nextRun(true);
    expect(oracle.mustHave(ID)).toBe(true);
    // It has not been seen in this run: what is persisted now may not be it.
    expect(oracle.persistSent().versions).toEqual([]);
    oracle.purgeSent([ID]);
    expect(oracle.mustHave(ID)).toBe(false);
    stored(oracle, 2);
    oracle.persistAnswered(oracle.persistSent());
    oracle.nextRun(false);
    expect(oracle.mustHave(ID)).toBe(false);
  });

  test("expects nothing in empty folders", () => {
    const oracle = new Oracle();
    const content = stored(oracle, 1);
    oracle.persistAnswered(oracle.persistSent());
    oracle.nextLife();
    expect(oracle.mustHave(ID)).toBe(false);
    expect(answers(oracle, content)).toBe("resurrected");
  });
});

describe("the points", () => {
  test("are those of the sources, before and after each call", () => {
    const names = knownKills().map(({ name, action }) => `${name}:${action}`);
    expect(new Set(names).size).toBe(names.length);
    for (const name of ["store.link:kill", "store.link:kill-after", "index.committed:kill"]) {
      expect(names).toContain(name);
    }
  });

  test("are gone round, later and later while they are reached", () => {
    const random = { u32: () => 2 ** 32 - 1 };
    const plan = new KillPlan("store.link", random);
    expect(plan.known).toBe(2);
    const nths: string[] = [];
    for (let turn = 0; turn < 8; turn++) {
      const next = plan.next(random);
      nths.push(next.plan);
      next.ended(next.kill.action === "kill");
    }
    const [kill, after] = ["store.link:N:kill", "store.link:N:kill-after"];
    const of = (text: string) =>
      nths.filter((nth) => nth.replace(/\d+/, "N") === text).map((nth) => nth.split(":")[1]);
    expect(of(kill)).toEqual(["1", "4", "16", "64"]);
    expect(of(after)).toEqual(["1", "1", "1", "1"]);
    expect(plan.unreached).toEqual(["store.link:kill-after"]);
  });
});
