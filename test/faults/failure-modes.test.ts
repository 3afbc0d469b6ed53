import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../../scripts/lib/paths.ts";
import { HEALTH_CODE_NAMES } from "../../src/observability/index.ts";

test("each health code of store, control plane, peers and devices has a row in failure-modes.md", () => {
  const page = readFileSync(join(ROOT, "docs/operating/failure-modes.md"), "utf8");
  const ours = /^(KV_(SSD|INDEX|LIMITS|HOLDS|PINS)|NATS|AUDIT|PEERS|GPU|RDMA)/;
  const codes = HEALTH_CODE_NAMES.filter((code) => ours.test(code));
  expect(codes.filter((code) => !page.includes(`\`${code}\``))).toEqual([]);
});
