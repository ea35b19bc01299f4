"""Chat templates that nobody knows."""

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Knows messages, and nothing else."""

STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Knows a user and an assistant, by turns."""

MERGING = "{% for m in messages %}{{ m.content }}b{% endfor %}"
"""Has no control tokens: its `b` becomes one token with an `a` before it."""

LAST_THOUGHT = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% set said = m.content.split('</think>')[-1].strip() if m.role == 'assistant' and not loop.last else m.content -%}
{{ said }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Deletes thoughts from every turn but the last; they are in the content, as it is not told of them apart."""

CYCLE_OF_THOUGHTS = """{{ tools | tojson }}
{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.reasoning_content and loop.index0 > ns.last %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Is told of thoughts, calls and tools, and writes down the thoughts after the last user's message only."""
