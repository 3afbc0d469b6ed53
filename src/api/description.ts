import type { TSchema } from "elysia";
import { type Access, needsCredentials } from "./authorization.ts";
import type { RouteRules } from "./route-rules.ts";

/** The framework's OpenAPI document, reduced to the parts that this module completes. */
export interface Description {
  paths: Record<string, Record<string, Operation>>;
  components?: { schemas?: Record<string, object>; securitySchemes?: object };
  security?: object[];
}

interface Operation {
  parameters?: Parameter[];
  requestBody?: { readonly content?: Contents };
  responses: Record<string, Answer>;
  security?: object[];
  /** The route's own refusals (texts by HTTP status). */
  [REFUSALS]?: Record<string, string>;
}

interface Parameter {
  readonly name: string;
  schema: Schema;
  description?: unknown;
  example?: unknown;
}

interface Answer {
  readonly description: string;
  readonly content?: Contents;
}

/** Bodies by media type. */
type Contents = Readonly<Record<string, { readonly schema?: Schema; readonly examples?: object }>>;

/** A JSON schema, reduced to the keywords that an example depends on. */
interface Schema {
  readonly [keyword: string]: unknown;
  /** Type name. A list of names if null is allowed, too. */
  readonly type?: string | readonly string[];
  readonly const?: unknown;
  readonly enum?: readonly unknown[];
  readonly examples?: readonly unknown[];
  readonly anyOf?: readonly Schema[];
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly items?: Schema;
  readonly minimum?: number | undefined;
  readonly maximum?: number | undefined;
  readonly format?: string;
  readonly pattern?: string;
}

const REFUSALS = "x-refusals";

/**
 * Returns the texts of a route for the OpenAPI description: its summary, and its own refusals by
 * HTTP status.
 */
export function described(summary: string, refusals: Readonly<Record<number, string>> = {}) {
  return { summary, [REFUSALS]: refusals };
}

/**
 * Returns the OpenAPI description of a JSON body. If no example is given, one is generated from the
 * schema.
 */
export function jsonContent(schema: TSchema, ...values: readonly unknown[]) {
  const examples = Object.fromEntries(values.map((value, at) => [`example${at + 1}`, { value }]));
  return {
    "application/json": { schema: schema as object, ...(values.length === 0 ? {} : { examples }) },
  };
}

/** Returns the OpenAPI description of a JSON request body that the handler parses itself. */
export function jsonBody(schema: TSchema, ...values: readonly unknown[]) {
  return { required: true, content: jsonContent(schema, ...values) };
}

/** Number used in generated examples. Every schema without narrow bounds allows it. */
const NUMBER = 12;

/**
 * Returns an example value that the schema allows. `name` is the member's name, used as the value
 * of texts.
 */
function exampleOf(schema: Schema, name = "text"): unknown {
  const { properties = {}, items, anyOf, minimum, maximum } = schema;
  const words = schema.examples ?? schema.enum;
  if (words !== undefined) return words[0];
  if (Object.hasOwn(schema, "const")) return schema.const;
  if (anyOf !== undefined) {
    return exampleOf(anyOf.find((branch) => branch.type !== "null") ?? anyOf[0], name);
  }
  switch ([schema.type].flat().find((type) => type !== "null")) {
    case "object": {
      const members = Object.entries(properties);
      return Object.fromEntries(members.map(([member, of]) => [member, exampleOf(of, member)]));
    }
    case "array":
      return items === undefined ? [] : [exampleOf(items, name)];
    case "boolean":
      return true;
    case "string":
      if (schema.format === "date-time") return "2026-01-01T00:00:00.000Z";
      if (schema.pattern === undefined) return name;
      return schema.pattern.includes("a-f") ? "ab".repeat(32) : "42";
    default:
      return Math.min(maximum ?? NUMBER, Math.max(minimum ?? NUMBER, NUMBER));
  }
}

/** Adds an example to each body that has none. */
function withExamples(contents: Contents): Contents {
  const completed = Object.entries(contents).map(([type, content]) => {
    const { schema, examples } = content;
    const isComplete = schema === undefined || examples !== undefined || "$ref" in schema;
    if (isComplete || schema.examples !== undefined) return [type, content];
    return [type, { ...content, examples: { example: { value: exampleOf(schema) } } }];
  });
  return Object.fromEntries(completed);
}

const PROBLEM = {
  type: "object",
  required: ["type", "title", "status", "detail", "code"],
  properties: {
    type: { const: "about:blank" },
    title: { type: "string" },
    status: { type: "integer" },
    detail: { type: "string", description: "Message with the problem" },
    code: { type: "string", description: "Stable" },
    fix: { type: "string", description: "Suggested fix" },
  },
  examples: [
    {
      type: "about:blank",
      title: "Unprocessable Content",
      status: 422,
      detail: "query: limit is an integer from 1 to 1000",
      code: "REQUEST_INVALID",
    },
  ],
};

const ERRORS_FROM = 400;

function problem(description: string): Answer {
  const content = {
    "application/problem+json": { schema: { $ref: "#/components/schemas/Problem" } },
  };
  return { description, content };
}

/** Adds authorization, errors and examples of all routes to an OpenAPI document. */
export function completeDescription(
  given: Description,
  access: Access,
  rules: RouteRules,
): Description {
  const { components, ...rest } = given;
  const paths = Object.entries(given.paths).map(([path, methods]) => {
    const operations = Object.entries(methods).map(([method, operation]) => {
      const route = `${method.toUpperCase()} ${path.replace(/\{(\w+)\}/g, ":$1")}`;
      const isOpen = rules.roles[route] === "open";
      return [method, completeOperation(operation, method, access, isOpen)];
    });
    return [path, Object.fromEntries(operations)];
  });
  return {
    ...rest,
    paths: Object.fromEntries(paths),
    components: {
      ...components,
      schemas: { ...components?.schemas, Problem: PROBLEM },
      ...(needsCredentials(access) ? { securitySchemes: schemesOf(access) } : {}),
    },
    ...(needsCredentials(access) ? { security: securityOf(access) } : {}),
  };
}

function completeOperation(
  operation: Operation,
  method: string,
  access: Access,
  isOpen: boolean,
): Operation {
  const { parameters, requestBody, responses, [REFUSALS]: refusals, ...rest } = operation;
  const named = Object.entries({ ...refusalsOf(operation, method, access, isOpen), ...refusals });
  const answers = Object.fromEntries(named.map(([status, text]) => [status, problem(text)]));
  const own = Object.entries(responses).map(([status, { description, content }]) => {
    if (content !== undefined) return [status, { description, content: withExamples(content) }];
    return [status, Number(status) >= ERRORS_FROM ? problem(description) : { description }];
  });
  return {
    ...rest,
    ...(parameters && { parameters: parameters.map(completeParameter) }),
    ...(requestBody && {
      requestBody: { ...requestBody, content: withExamples(requestBody.content ?? {}) },
    }),
    responses: {
      ...answers,
      ...Object.fromEntries(own),
      default: problem("Any other error, such as 405 for an unsupported method"),
    },
    // A server that requires client certificates accepts no connection without one, even for open
    // routes.
    ...(isOpen && wantsCertificate(access) ? { security: [{ certificate: [] }] } : {}),
  };
}

/** Returns the errors of authorization and request parsing, by HTTP status. */
function refusalsOf(
  operation: Operation,
  method: string,
  access: Access,
  isOpen: boolean,
): Record<string, string> {
  const isGuarded = needsCredentials(access);
  const takesBody = method === "post";
  const takesAny = operation.parameters !== undefined || operation.requestBody !== undefined;
  return {
    ...(isOpen || access.tokens === null ? {} : { 401: "The token is missing or invalid" }),
    ...(isOpen && isGuarded
      ? {}
      : { 403: isOpen ? "The Host header names another host" : FORBIDDEN }),
    ...(takesBody ? { 413: "The body is longer than 1 MiB" } : {}),
    ...(takesAny ? { 422: "A value is invalid; see `detail`" } : {}),
  };
}

const FORBIDDEN =
  "The caller's role is insufficient, or the request comes from a page of another site";

/**
 * Removes the text variant from the schema of a numeric parameter, which the framework describes as
 * a union of text and number.
 */
function completeParameter(parameter: Parameter): Parameter {
  const { description, ...rest } = parameter.schema;
  const { minimum, maximum, default: fallback } = rest;
  const isNumber = minimum !== undefined;
  const schema = isNumber
    ? { type: "integer", minimum, maximum, default: fallback }
    : { ...parameter.schema };
  return {
    ...parameter,
    ...(description === undefined ? {} : { description }),
    schema,
    example: exampleOf(schema, parameter.name),
  };
}

function wantsCertificate({ tls }: Access): boolean {
  return tls !== null && tls.clientCa !== null;
}

function schemesOf(access: Access): object {
  return {
    ...(access.tokens === null ? {} : { bearer: { type: "http", scheme: "bearer" } }),
    ...(wantsCertificate(access) ? { certificate: { type: "mutualTLS" } } : {}),
  };
}

/**
 * Returns the accepted credentials: a list of alternatives, each with all credentials that it
 * requires.
 */
function securityOf(access: Access): object[] {
  const certificate = wantsCertificate(access) ? { certificate: [] } : {};
  const bearer = access.tokens === null ? [] : [{ ...certificate, bearer: [] }];
  return wantsCertificate(access) ? [certificate, ...bearer] : bearer;
}
