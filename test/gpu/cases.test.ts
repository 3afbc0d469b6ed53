import { expect, test } from "bun:test";
import { tallyOf } from "./cases.ts";

test("a part that is skipped fails where a GPU is required", () => {
  const [ok, failed, skipped] = (["ok", "failed", "skipped"] as const).map((outcome) => ({
    outcome,
  }));
  expect(tallyOf([ok!, ok!], true)).toMatchObject({ passed: 2, skipped: 0, isWell: true });
  expect(tallyOf([ok!, skipped!], false)).toMatchObject({ skipped: 1, isWell: true });
  expect(tallyOf([ok!, skipped!], true)).toMatchObject({ skipped: 1, isWell: false });
  expect(tallyOf([ok!, failed!], false)).toMatchObject({ failed: 1, isWell: false });
});
