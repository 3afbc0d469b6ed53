import { expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { type ApiDocument, apiMembers } from "./api-members.ts";
import { serveRouter } from "./router/serve.ts";
import { serve } from "./serve.ts";

const served = { agent: serve(), router: serveRouter() };

/** `UPDATE_GOLDEN=1` writes the files. A removed or renamed line breaks clients. */
test.each(["agent", "router"] as const)(
  "the %s's API has the parameters and members of its golden file",
  async (name) => {
    const answer = await served[name].get("/openapi/json");
    const members = apiMembers((await answer.json()) as ApiDocument);
    const file = join(import.meta.dir, "golden", `${name}.txt`);
    if (process.env.UPDATE_GOLDEN === "1") writeFileSync(file, members);
    expect(members).toBe(readFileSync(file, "utf8"));
  },
);
