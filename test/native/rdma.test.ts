import { expect, test } from "bun:test";
import { describeNative } from "../support/native.ts";
import { move, openPair, openSide, verbsLibrary } from "./rdma-kit.ts";

describeNative("RDMA", () => {
  test("says what ports there are", async () => {
    await using side = openSide(verbsLibrary());
    expect(side.rdma.state).toBe("ready");
    expect(side.rdma.ports()).not.toBeEmpty();
  });
  test("moves", async () => {
    await using pair = openPair();
    await move(pair, 4096, 1_000_000, 7n);
    await move(pair, 4096, 1, 8n);
  });
});
