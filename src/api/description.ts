import { type Access, needsCredentials } from "./authorization.ts";
import { AGENT_RULES, type RouteRules } from "./route-rules.ts";

/** The framework's OpenAPI document, reduced to the parts completed here. */
export interface Description {
  paths: Record<string, Record<string, Operation>>;
  components?: { schemas?: Record<string, object>; securitySchemes?: object };
  security?: object[];
}

interface Operation {
  parameters?: Parameter[];
  requestBody?: object;
  responses: Record<string, Answer>;
  security?: object[];
}

interface Parameter {
  readonly name: string;
  schema: Record<string, unknown>;
  description?: unknown;
  example?: unknown;
}

interface Answer {
  readonly description: string;
  readonly content?: object;
}

/** Texts of an OpenAPI description that the framework does not know. */
export interface DescriptionTexts {
  readonly rules: RouteRules;
  /** Examples of parameters, by name. */
  readonly examples: Readonly<Record<string, unknown>>;
  /** Examples for routes where a parameter has another meaning. */
  readonly examplesOf: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
  /** Additional answers of a route, by status. */
  readonly answersOf: Readonly<Record<string, Readonly<Record<string, string>>>>;
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

/** Completes an OpenAPI document: authorization, errors and examples of all routes. */
export function completeDescription(
  given: Description,
  access: Access,
  texts: DescriptionTexts,
): Description {
  const { components, ...rest } = given;
  const paths = Object.entries(given.paths).map(([path, methods]) => {
    const operations = Object.entries(methods).map(([method, operation]) => {
      const route = `${method.toUpperCase()} ${path.replace(/\{(\w+)\}/g, ":$1")}`;
      return [method, completeOperation(operation, route, access, texts)];
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
  route: string,
  access: Access,
  { rules, ...texts }: DescriptionTexts,
): Operation {
  const { parameters = [], responses, ...rest } = operation;
  const examples = { ...texts.examples, ...texts.examplesOf[route] };
  const isOpen = rules.roles[route] === "open";
  const refused = refusalsOf(operation, route, access, isOpen);
  const named = Object.entries({ ...refused, ...texts.answersOf[route] });
  const answers = Object.fromEntries(named.map(([status, text]) => [status, problem(text)]));
  const own = Object.entries(responses).map(([status, answer]) => {
    const isBare = Number(status) >= ERRORS_FROM && answer.content === undefined;
    return [status, isBare ? problem(answer.description) : answer];
  });
  return {
    ...rest,
    ...(parameters.length === 0
      ? {}
      : { parameters: parameters.map((one) => completeParameter(one, examples[one.name])) }),
    responses: {
      ...answers,
      ...Object.fromEntries(own),
      default: problem("Any other error, such as 405 for an unsupported method"),
    },
    // A server that requires certificates accepts no connection without one, on any route.
    ...(isOpen && wantsCertificate(access) ? { security: [{ certificate: [] }] } : {}),
  };
}

/** Errors of authorization and request parsing, by status. */
function refusalsOf(
  operation: Operation,
  route: string,
  access: Access,
  isOpen: boolean,
): Record<string, string> {
  const isGuarded = needsCredentials(access);
  const takesBody = route.startsWith("POST ");
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

/** The framework describes a numeric parameter as a union of text and number. Keeps the number. */
function completeParameter(parameter: Parameter, example: unknown): Parameter {
  const { description, anyOf: _anyOf, ...schema } = parameter.schema;
  const { minimum, maximum, default: standard } = schema;
  const isNumber = minimum !== undefined;
  const bounds = { type: "integer", minimum, maximum, default: standard };
  return {
    ...parameter,
    ...(description === undefined ? {} : { description }),
    schema: isNumber ? bounds : { ...parameter.schema },
    ...(example === undefined ? {} : { example }),
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

/** Accepted credentials: a list of alternatives, each with everything it requires. */
function securityOf(access: Access): object[] {
  const certificate = wantsCertificate(access) ? { certificate: [] } : {};
  const bearer = access.tokens === null ? [] : [{ ...certificate, bearer: [] }];
  return wantsCertificate(access) ? [certificate, ...bearer] : bearer;
}

const DIGEST = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

const EXAMPLES: Readonly<Record<string, unknown>> = {
  root: "1234567890",
  key: "1234567890",
  depth: 2,
  limit: 100,
  after: 100,
  fields: "digest,tiers,held_by",
  names: `111,222,${DIGEST}`,
  owner: "system-prompts",
  kind: "retain",
  issuer: "router-1",
  id: "w-1",
  wait: "false",
};
/** Examples for routes where a parameter has another meaning. */
const EXAMPLES_OF: Readonly<Record<string, Readonly<Record<string, unknown>>>> = {
  "GET /v1/tree": { after: "n6Fb8gEAAAABAAAAAgAAAAIAAAA" },
  "GET /v1/sessions/:id": { id: "42" },
};

const ANSWERS_OF: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  "GET /v1/tree": { 404: "The root block is not known here" },
  "GET /v1/sessions/:id": { 404: "No session with this number holds a block" },
  "POST /v1/persist": { 501: "The agent has no SSD tier" },
  "GET /flush_cache": { 405: "HEAD; and GET without `api.flush_by_get`" },
};

/** Texts of the agent's API. */
export const AGENT_DESCRIPTION: DescriptionTexts = {
  rules: AGENT_RULES,
  examples: EXAMPLES,
  examplesOf: EXAMPLES_OF,
  answersOf: ANSWERS_OF,
};
