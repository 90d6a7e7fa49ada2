FORM: int

def span(
    max_attributes: int,
    max_text: int,
    max_name: int,
    trace_id: int,
    span_id: int,
    parent_id: int,
    name: str,
    kind: int,
    start_ns: int,
    end_ns: int,
    status: tuple[int, str] | None,
    attributes: dict[str, object] | None,
    /,
) -> bytes: ...
