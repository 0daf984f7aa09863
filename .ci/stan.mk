# What the Stan programs of the tests share: the stand-in's interface, and Stan's headers, precompiled into HEADERS.
include $(BRIDGESTAN)/Makefile
HEADER := stan/model/model_header.hpp

.PHONY: shared
shared: $(BUILD)/shim.o $(HEADERS)/$(HEADER).gch

$(HEADERS)/$(HEADER).gch:
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS_) $(INC) -x c++-header $(HTTPSTAN)/include/$(HEADER) -o $@
