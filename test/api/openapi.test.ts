import { describe, expect, test } from "bun:test";
import { COMMAND_TYPES, decodeCommand } from "../../src/control/index.ts";
import { COMMAND_OUTCOMES, stringifyJson } from "../../src/core/index.ts";
import { receiptOf } from "./fake-control.ts";
import { faultsOf, type Schema } from "./json-schema.ts";
import { serve } from "./serve.ts";

interface Content {
  readonly schema: Schema & { readonly examples?: unknown[] };
  readonly examples?: Record<string, { readonly value: unknown }>;
}
interface Operation {
  readonly requestBody?: { readonly content: Record<string, Content> };
  readonly responses: Record<string, { readonly content?: Record<string, Content> }>;
}

const served = serve();
const { paths } = (await (await served.get("/openapi/json")).json()) as {
  readonly paths: Record<string, Record<string, Operation>>;
};

/** `POST /v1/commands 200 application/json`, and what it may be. */
const CONTENTS: readonly (readonly [string, Content])[] = Object.entries(paths).flatMap(
  ([path, methods]) =>
    Object.entries(methods).flatMap(([method, { requestBody, responses }]) => {
      const name = `${method.toUpperCase()} ${path}`;
      const bodies = Object.entries(requestBody?.content ?? {});
      return [
        ...bodies.map(([type, content]) => [`${name} body ${type}`, content] as const),
        ...Object.entries(responses).flatMap(([status, { content = {} }]) =>
          Object.entries(content).map(([type, one]) => [`${name} ${status} ${type}`, one] as const),
        ),
      ];
    }),
);

const examplesOf = ({ schema, examples = {} }: Content): unknown[] => [
  ...(schema.examples ?? []),
  ...Object.values(examples).map(({ value }) => value),
];

const contentOf = (name: string) => CONTENTS.find(([key]) => key === name)![1];

/** Routes of before, and what has no body worth an example. */
const WITHOUT =
  /^(GET \/(healthz|readyz|metrics|v1\/(status|sessions))|POST \/v1\/(purge|persist))/;

describe("the examples in the description", () => {
  test.each(CONTENTS)("of %s are as it says", (name, content) => {
    const examples = examplesOf(content);
    for (const example of examples) expect(faultsOf(content.schema, example)).toEqual([]);
    const isJson = !name.endsWith("msgpack") && !WITHOUT.test(name);
    if (isJson) expect(examples.length).toBeGreaterThan(0);
  });

  test("are understood, one command of each type among them", () => {
    const examples = examplesOf(contentOf("POST /v1/commands body application/json"));
    const types = examples.map((example) => {
      const decoded = decodeCommand(Buffer.from(stringifyJson(example)), "application/json");
      expect(decoded).toMatchObject({ ok: true, unnamed: [] });
      return decoded.ok ? decoded.command.type : null;
    });
    expect([...new Set(types)].sort()).toEqual([...COMMAND_TYPES].sort());
  });

  test("show a receipt for each command, of each status", () => {
    const types = new Set<unknown>();
    const statuses = new Set<unknown>();
    for (const status of [200, 202, 429]) {
      const name = `POST /v1/commands ${status} application/json`;
      for (const example of examplesOf(contentOf(name))) {
        const receipt = example as ReturnType<typeof receiptOf>;
        types.add(receipt.type);
        statuses.add(receipt.status);
        expect(Object.keys(receipt.counts)).toEqual([...COMMAND_OUTCOMES]);
      }
    }
    expect([...types].sort()).toEqual([...COMMAND_TYPES].sort());
    expect([...statuses].sort()).toEqual(["ok", "partial", "rejected", "running"]);
  });
});

test("a schema is as strict as it looks", () => {
  const { schema } = contentOf("POST /v1/commands 200 application/json");
  const receipt = receiptOf();
  expect(faultsOf(schema, JSON.parse(JSON.stringify(receipt)))).toEqual([]);
  expect(faultsOf(schema, { ...receipt, counts: {} })).toHaveLength(6);
  expect(faultsOf(schema, { ...receipt, status: "fine" })).not.toEqual([]);
  expect(faultsOf(schema, { ...receipt, elapsed_ms: -1 })).toEqual(["$.elapsed_ms: below 0"]);
  expect(faultsOf(schema, { ...receipt, more: 1 })).toEqual(["$: more is not described"]);
  expect(faultsOf({ colour: "red" }, 1)).toEqual(["$: unknown keyword colour"]);
});
