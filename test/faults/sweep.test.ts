import { afterAll, describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { loadNative } from "../../src/native/index.ts";
import type { Method } from "../store/ssd/ssd-kit.ts";
import { describeNative, noteSkip } from "../support/index.ts";
import { actionsOf, nthsOf } from "./actions.ts";
import { ringRefusal } from "./methods.ts";
import { sweep } from "./sweep.ts";
import { WORKLOADS } from "./workloads.ts";

/** Of all that `./dev test:faults` does. */
const ONE_IN = 45;

describeNative("calls of the SSD tier that fail", () => {
  const folder = mkdtempSync(join(existsSync("/dev/shm") ? "/dev/shm" : tmpdir(), "hearth-"));
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  for (const method of ["threads", "io_uring"] as const satisfies readonly Method[]) {
    for (const workload of WORKLOADS) {
      test(`${workload.name}, by ${method}: the store comes back, nothing is left`, async () => {
        const refusal = method === "io_uring" ? await ringRefusal(loadNative()) : null;
        if (refusal !== null) {
          noteSkip(`faults by ${method}`, refusal);
          return;
        }
        const report = await sweep({
          folder,
          workloads: [workload],
          methods: [method],
          oneIn: ONE_IN,
        });
        expect(report.violations).toEqual([]);
        expect(report.parts[0]!.points).toBeGreaterThan(15);
        expect(report.parts[0]!.runs).toBeGreaterThan(2);
      });
    }
  }
});

describe("the plans of the sweep", () => {
  test("each call fails once and for ever, the first times in every way", () => {
    expect(nthsOf(1)).toEqual(["1", "1+"]);
    expect(nthsOf(3)).toEqual(["1", "2", "3", "1+", "2+"]);
    const many = nthsOf(100);
    expect(many).toContain("100");
    expect(many).toContain("50+");
    expect(actionsOf("store.write", 1)).toEqual(["EIO", "ENOSPC", "short", "EINTR"]);
    expect(actionsOf("store.write", 7)).toHaveLength(1);
  });
});
