module otel_rl/schemas

go 1.26.0

require github.com/compose-spec/compose-go/v2 v2.16.2
