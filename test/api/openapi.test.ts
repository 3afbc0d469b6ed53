import { describe, expect, test } from "bun:test";
import { COMMAND_TYPES, decodeCommand } from "../../src/control/index.ts";
import { COMMAND_OUTCOMES, stringifyJson } from "../../src/core/index.ts";
import { makeCertificates, tempDir } from "../support/index.ts";
import { receiptOf } from "./fake-control.ts";
import { faultsOf, type Schema } from "./json-schema.ts";
import { oneToken, serve } from "./serve.ts";

const TOKEN = "0123456789abcdef";

interface Content {
  readonly schema: Schema & { readonly examples?: unknown[] };
  readonly examples?: Record<string, { readonly value: unknown }>;
}
interface Operation {
  readonly parameters?: readonly {
    readonly name: string;
    readonly schema: Schema;
    readonly example?: unknown;
  }[];
  readonly security?: unknown;
  readonly requestBody?: { readonly content: Record<string, Content> };
  readonly responses: Record<string, { readonly content?: Record<string, Content> }>;
}

interface Described {
  readonly paths: Record<string, Record<string, Operation>>;
  readonly components: {
    readonly schemas: Record<string, Schema>;
    readonly securitySchemes?: object;
  };
  readonly security?: unknown;
}

const served = serve();
const describeApi = async (from = served, init: RequestInit = {}) =>
  (await (await from.get("/openapi/json", init)).json()) as Described;
const { paths, components } = await describeApi();

/** The schema of a content, with its reference resolved. */
function schemaOf({ schema }: Content): Content["schema"] {
  const name = /^#\/components\/schemas\/(\w+)$/.exec(String(schema.$ref))?.[1];
  return name === undefined ? schema : components.schemas[name]!;
}

/** Name, such as `POST /v1/commands 200 application/json`, and content of each body. */
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

const examplesOf = (content: Content): unknown[] => [
  ...((schemaOf(content).examples as unknown[] | undefined) ?? []),
  ...Object.values(content.examples ?? {}).map(({ value }) => value),
];

const contentOf = (name: string) => CONTENTS.find(([key]) => key === name)![1];

describe("examples in the OpenAPI description", () => {
  test.each(CONTENTS)("examples of %s match their schema", (name, content) => {
    const examples = examplesOf(content);
    for (const example of examples) expect(faultsOf(schemaOf(content), example)).toEqual([]);
    if (!name.endsWith("msgpack")) expect(examples.length).toBeGreaterThan(0);
  });

  test("examples of every command type decode", () => {
    const examples = examplesOf(contentOf("POST /v1/commands body application/json"));
    const types = examples.map((example) => {
      const decoded = decodeCommand(Buffer.from(stringifyJson(example)), "application/json");
      expect(decoded).toMatchObject({ ok: true, unnamed: [] });
      return decoded.ok ? decoded.command.type : null;
    });
    expect([...new Set(types)].sort()).toEqual([...COMMAND_TYPES].sort());
  });

  test("examples have a receipt for each command and each status", () => {
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

const OPERATIONS = Object.entries(paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => {
    return [`${method.toUpperCase()} ${path}`, operation] as const;
  }),
);

describe("the OpenAPI description", () => {
  test.each(OPERATIONS)("%s has an example for each parameter", (_, { parameters = [] }) => {
    for (const { schema, example } of parameters) {
      expect(example).toBeDefined();
      expect(faultsOf(schema, example)).toEqual([]);
    }
  });

  test("the description lists the refusals of authorization, bodies and queries", async () => {
    const statusesOf = (from: Described, path: string, method: string) =>
      Object.keys(from.paths[path]![method]!.responses);
    const { paths } = await describeApi(serve());
    expect(statusesOf({ paths, components }, "/v1/tree", "get")).toEqual([
      "200",
      "403",
      "404",
      "422",
      "default",
    ]);
    expect(statusesOf({ paths, components }, "/v1/purge", "post")).toEqual([
      "200",
      "403",
      "413",
      "422",
      "default",
    ]);
    expect(statusesOf({ paths, components }, "/flush_cache", "get")).toContain("405");
    expect(Object.keys(paths["/v1/purge"]!.post!.requestBody!.content)).toEqual([
      "application/json",
    ]);
    const guarded = serve({ access: oneToken(TOKEN) });
    const withToken = await describeApi(guarded, {
      headers: { authorization: `Bearer ${TOKEN}` },
    });
    expect(statusesOf(withToken, "/v1/tree", "get")).toContain("401");
    expect(statusesOf(withToken, "/healthz", "get")).toEqual(["200", "default"]);
  });

  test("the description lists client certificates if they are required", async () => {
    const files = makeCertificates(tempDir());
    const tls = {
      cert: await Bun.file(files.certFile).text(),
      key: await Bun.file(files.keyFile).text(),
      clientCa: await Bun.file(files.caFile).text(),
    };
    const from = serve({ access: { ...oneToken(TOKEN), tls } });
    const shown = {
      ca: tls.clientCa,
      cert: await Bun.file(files.clientCertFile).text(),
      key: await Bun.file(files.clientKeyFile).text(),
    };
    const { components, security, paths } = await describeApi(from, { tls: shown } as RequestInit);
    expect(components.securitySchemes).toEqual({
      bearer: { type: "http", scheme: "bearer" },
      certificate: { type: "mutualTLS" },
    });
    expect(security).toEqual([{ certificate: [] }, { certificate: [], bearer: [] }]);
    expect(paths["/healthz"]!.get!.security).toEqual([{ certificate: [] }]);
  });
});

test("the schema checker rejects unknown and missing fields", () => {
  const { schema } = contentOf("POST /v1/commands 200 application/json");
  const receipt = receiptOf();
  expect(faultsOf(schema, JSON.parse(JSON.stringify(receipt)))).toEqual([]);
  expect(faultsOf(schema, { ...receipt, counts: {} })).toHaveLength(6);
  expect(faultsOf(schema, { ...receipt, status: "fine" })).not.toEqual([]);
  expect(faultsOf(schema, { ...receipt, elapsed_ms: -1 })).toEqual(["$.elapsed_ms: below 0"]);
  expect(faultsOf(schema, { ...receipt, more: 1 })).toEqual(["$: more is not described"]);
  expect(faultsOf({ colour: "red" }, 1)).toEqual(["$: unknown keyword colour"]);
});
