export { TemplateSyntaxError } from "./lexer.ts";
export { RENDER_LIMITS, type RenderLimits } from "./operators.ts";
export { type RenderOptions, Template } from "./template.ts";
